"""Replies that must follow a schema or be one of a list, with the grammars of `llguidance`.

The library is loaded when the first such request comes. It reads the tokenizer's definition itself.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import cache, cached_property
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING

import torch

from mac_runner.nano.errors import ConstraintError
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

GRAMMARS_MAX = 128
WHITESPACE = r" |\n{1,2}[ \t]{0,20}"
"""Between the parts of a JSON text: nothing, a space, or a line break or two and an indent, as llama.cpp has it.

Without a bound a model that has lost its way says whitespace until it may say no more. A schema that names a pattern
of its own, in `x-guidance`, is followed.
"""
_BOUNDED_FROM = (1, 8)
"""The release of llguidance from which on a pattern is not matched again and again; before it there are no blanks."""

_Wanted = tuple[str | None, tuple[str, ...]]
"""A schema, or choices."""

_BITS = torch.arange(8, dtype=torch.uint8)


class Constraint:
    """What one completion may still say.

    Every method raises ConstraintError when the grammar has broken down, as one does that grows beyond the library's
    limits while it is followed: what the library answers then is that the text may end anywhere.
    """

    def __init__(self, matcher: LLMatcher, grammar: Grammar) -> None:
        self._matcher = matcher
        self._grammar = grammar

    def allowed(self, vocab_size: int) -> torch.Tensor:
        """A boolean for each token id: whether it may come next."""
        mask = self._matcher.compute_bitmask()
        self._require_sound()
        bits = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
        known = ((bits.unsqueeze(1) >> _BITS) & 1).flatten()[:vocab_size].bool()
        # A model may have rows beyond its tokenizer's last token, and those are never said.
        return torch.nn.functional.pad(known, (0, vocab_size - known.numel()))

    def accept(self, token_id: int) -> None:
        """Go on behind this token."""
        is_accepted = self._matcher.consume_token(token_id)
        self._require_sound()
        if not is_accepted:
            raise ConstraintError(f"token {token_id} does not follow the grammar, which is at its end")

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow any more."""
        self._require_sound()
        return bool(self._matcher.is_stopped())

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            self._grammar.is_broken = True
            reason = self._matcher.get_error().partition("\n")[0]
            raise ConstraintError(f"this constraint broke down on the way, simplify it: {reason}")


class Grammar:
    """What the completions of one request may say, ready to be followed by any number of them.

    They share what is compiled, so when it breaks down for one of them it `is_broken` for all.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.is_broken = False

    def constraint(self) -> Constraint:
        """A completion's own place in it, at the beginning. It costs microseconds, for what was compiled is shared."""
        return Constraint(self._matcher.deep_copy(), self)


class GrammarCompiler:
    """Makes grammars for one tokenizer, and keeps the GRAMMARS_MAX last used. Any thread may ask for one."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._compiled = OrderedDict[_Wanted, Grammar]()
        self._looking = Lock()

    def compile(self, params: SamplingParams) -> Grammar | None:
        """The grammar these settings ask for; None if they ask for none. Raises ConstraintError.

        One that has broken down is made anew.
        """
        if not params.is_constrained:
            return None
        wanted = params.json_schema, params.choices
        # Two that want the same at once may both make it; neither waits for what another wants.
        grammar = self._found(wanted) or self._compile(*wanted)
        with self._looking:
            self._compiled[wanted] = grammar
            self._compiled.move_to_end(wanted)
            while len(self._compiled) > GRAMMARS_MAX:
                self._compiled.popitem(last=False)
        return grammar

    def _found(self, wanted: _Wanted) -> Grammar | None:
        with self._looking:
            grammar = self._compiled.get(wanted)
        return grammar if grammar is not None and not grammar.is_broken else None

    def _compile(self, schema: str | None, choices: tuple[str, ...]) -> Grammar:
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise ConstraintError("choices and schemas need llguidance: pip install 'mac_runner[nano]'") from error
        if schema is not None:
            grammar = _schema_grammar(schema, LLMatcher)
        else:
            grammar = LLMatcher.grammar_from_lark(_one_of(choices))
        matcher = LLMatcher(self._known, grammar, log_level=0)
        if matcher.is_error():
            raise ConstraintError(f"this constraint cannot be followed: {matcher.get_error()}")
        return Grammar(matcher)

    @cached_property
    def _known(self) -> LLTokenizer:
        """The tokenizer as the library has it."""
        if self._tokenizer is None:
            raise ConstraintError("choices and schemas are about text, and this model has no tokenizer.json")
        from llguidance import LLTokenizer

        return LLTokenizer(self._tokenizer.definition, eos_token=sorted(self._eos_token_ids) or None)


def _one_of(choices: tuple[str, ...]) -> str:
    """As one terminal, which is an automaton; as many rules they would all be open at once where they begin alike."""
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text) for text in choices)


def _schema_grammar(schema: str, matcher: type[LLMatcher]) -> str:
    try:
        json.loads(schema)
        return str(matcher.grammar_from_json_schema(schema, _blanks()))
    except ValueError as error:
        raise ConstraintError(f"json_schema is no JSON schema: {error}") from error


@cache
def knows_bounds() -> bool:
    """Whether the library can bound blanks; otherwise a JSON text is written without any."""
    release = tuple(int(part) for part in version("llguidance").split(".")[:2])
    return release >= _BOUNDED_FROM


def _blanks() -> dict[str, object]:
    return {"whitespace_pattern": WHITESPACE} if knows_bounds() else {"whitespace_flexible": False}
