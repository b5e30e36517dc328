"""Replies that must follow a schema or be one of a list, with the grammars of `llguidance`.

The library is loaded when the first such request comes. It reads the tokenizer's definition itself.
"""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
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

_BITS = torch.arange(8, dtype=torch.uint8)


class Constraint:
    """What one completion may still say."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self, vocab_size: int) -> torch.Tensor:
        """A boolean for each token id: whether it may come next."""
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        known = ((bits.unsqueeze(1) >> _BITS) & 1).flatten()[:vocab_size].bool()
        # A model may have rows beyond its tokenizer's last token, and those are never said.
        return torch.nn.functional.pad(known, (0, vocab_size - known.numel()))

    def accept(self, token_id: int) -> None:
        """Go on behind this token."""
        if not self._matcher.consume_token(token_id):
            raise ConstraintError(f"token {token_id} does not follow the grammar: {self._matcher.get_error()}")

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow any more."""
        return bool(self._matcher.is_stopped())


class Grammar:
    """What the completions of one request may say, ready to be followed by any number of them."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def constraint(self) -> Constraint:
        """A completion's own place in it, at the beginning. It costs microseconds, for what was compiled is shared."""
        return Constraint(self._matcher.deep_copy())


class GrammarCompiler:
    """Makes grammars for one tokenizer, and keeps the GRAMMARS_MAX last used. Any thread may ask for one."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._compiled = lru_cache(GRAMMARS_MAX)(self._compile)

    def compile(self, params: SamplingParams) -> Grammar | None:
        """The grammar these settings ask for; None if they ask for none. Raises ConstraintError."""
        return self._compiled(params.json_schema, params.choices) if params.is_constrained else None

    def _compile(self, schema: str | None, choices: tuple[str, ...]) -> Grammar:
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise ConstraintError("choices and schemas need llguidance: pip install 'mac_runner[nano]'") from error
        if schema is not None:
            grammar = _schema_grammar(schema, LLMatcher)
        else:
            grammar = LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in choices))
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


def _schema_grammar(schema: str, matcher: type[LLMatcher]) -> str:
    try:
        json.loads(schema)
        return str(matcher.grammar_from_json_schema(schema, {"whitespace_pattern": WHITESPACE}))
    except ValueError as error:
        raise ConstraintError(f"json_schema is no JSON schema: {error}") from error
