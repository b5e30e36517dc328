"""Replies that must follow a schema or be one of a list, by the grammars of `llguidance`.

The library is loaded with the first such request. It reads the tokenizer's definition itself. It cannot be interrupted
while it compiles, so a grammar that may be too large is tried in a process of its own first (`GrammarCompiler.trial`).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import torch

from mac_runner.nano.config import SamplingParams
from mac_runner.nano.errors import ConstraintError, QueueFullError
from mac_runner.nano.parallel.workers import own_environment
from mac_runner.nano.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

SCHEMA_CHARS_MAX = 1 << 20
ITEMS_MAX = 10_000
"""The most items that an array may be asked for by number: each is a part of the grammar."""
PLAIN_CHARS_MAX = 8 << 10
_PLAIN_ITEMS_MAX = 100
_COUNTS: Final = ("minItems", "maxItems")
_OF_SCHEMAS_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_OF_SCHEMAS: Final = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "prefixItems",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
"""Keywords that hold a schema, or a list of them."""
_ALTERNATIVES: Final = frozenset({"$ref", "anyOf", "oneOf"})
_UNHEARD: Final = frozenset({"$defs", "$schema", "default", "definitions", "description", "examples", "title"})
"""Keywords that say nothing about a reply."""
_PLAIN: Final = frozenset(
    {
        *_UNHEARD,
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "enum",
        "items",
        "maxItems",
        "maxLength",
        "minItems",
        "minLength",
        "prefixItems",
        "properties",
        "required",
        "type",
    }
)
"""Keywords that a grammar grows with only as fast as the schema does, unless alternatives stand beside others."""
_JOINING: Final = frozenset(
    {"allOf", "dependentSchemas", "else", "if", "not", "then", "unevaluatedProperties", "dependencies"}
)
"""Keywords by which one object must satisfy several schemas, or fail one."""
_ABOUT_OBJECTS: Final = frozenset({"additionalProperties", "patternProperties", "properties"})
GRAMMARS_MAX = 128
GRAMMARS_BYTES_MAX = 512 << 20
"""Of all grammars that are kept or in use."""
BYTES_PER_WORK = 16
"""The most memory that a grammar took while it was followed, for each unit of the library's work; measured."""
LOOK_EVERY_MAX = 16
"""How many tokens may be chosen by a grammar that does not grow before its size is looked at again."""
_GROWTH_BYTES = 16 << 10
"""Between two looks; a grammar that took more is looked at again with the next token."""
COMPILE_S_MAX = 5
COMPILE_BYTES_MAX = 256 << 20
_TRIAL = Path(__file__).with_name("grammar_trial.py")
WHITESPACE = r" |\n{1,2}[ \t]{0,20}"
"""Between the parts of a JSON text: nothing, a space, or one or two line breaks and an indent, as in llama.cpp.

Without a bound, a confused model writes whitespace until its tokens are used up. A pattern that a schema names in its
`x-guidance` has precedence.
"""
_BOUNDED_FROM = (1, 8)
"""From this release on llguidance does not repeat the pattern; with older ones a JSON text has no blanks."""

_Wanted = tuple[str | None, tuple[str, ...]]
"""A schema, or choices."""

_WORK = re.compile(r'"lexer_cost": (\d+)')
_REASONS = {"NoExtensionBias": "no text can satisfy it"}
"""What some of the library's errors say in words."""
_BITS = torch.arange(8, dtype=torch.uint8)


class Constraint:
    """The tokens that one completion may still add.

    Every method raises ConstraintError when the grammar has broken down: it has grown beyond the library's limits, or
    beyond the memory for all grammars, while it was followed. The library itself then only reports that the text may
    end anywhere.
    """

    def __init__(self, matcher: LLMatcher, grammar: Grammar) -> None:
        self._matcher = matcher
        self._grammar = grammar

    def allowed(self, vocab_size: int) -> torch.Tensor:
        """A boolean for each token id: whether it may come next."""
        mask = self._matcher.compute_bitmask()
        self._require_sound()
        self._grammar.look(self._matcher)
        self._require_sound()
        bits = torch.frombuffer(bytearray(mask), dtype=torch.uint8)
        known = ((bits.unsqueeze(1) >> _BITS) & 1).flatten()[:vocab_size].bool()
        # A model may have rows beyond its tokenizer's last token; those are never allowed.
        return torch.nn.functional.pad(known, (0, vocab_size - known.numel()))

    def accept(self, token_id: int) -> None:
        is_accepted = self._matcher.consume_token(token_id)
        self._require_sound()
        if not is_accepted:
            raise ConstraintError(f"token {token_id} does not follow the grammar, which is at its end")

    @property
    def is_complete(self) -> bool:
        """Whether no token may follow."""
        self._require_sound()
        return bool(self._matcher.is_stopped())

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            self._grammar.break_down()
            reason = self._matcher.get_error().partition("\n")[0]
            reason = _REASONS.get(reason, reason)
        elif self._grammar.is_given_up:
            reason = f"it outgrew the {GRAMMARS_BYTES_MAX >> 20} MiB kept for all constraints"
        else:
            return
        raise ConstraintError(f"this constraint broke down on the way, simplify it: {reason}")


class Grammar:
    """A compiled grammar for any number of completions.

    They share what is compiled, and what is added to it while it is followed. So one that `is_broken` for a completion
    is not begun again, and one that `is_given_up` has ended for all.
    """

    def __init__(self, matcher: LLMatcher, num_bytes: int, on_change: Callable[[], None]) -> None:
        self._matcher = matcher
        self._on_change = on_change
        self._work = _work_of(matcher)
        self._compiled_bytes = max(num_bytes, self._work * BYTES_PER_WORK) - self._work * BYTES_PER_WORK
        self._look_every = self._look_in = 1
        self.is_broken = False
        self.is_given_up = False

    @property
    def num_bytes(self) -> int:
        """What it takes; nothing if it was given up, because its completions end with their next token."""
        return 0 if self.is_given_up else self._compiled_bytes + self._work * BYTES_PER_WORK

    def constraint(self) -> Constraint:
        """A completion's own place at the beginning. It costs microseconds, because the compiled part is shared."""
        return Constraint(self._matcher.deep_copy(), self)

    def look(self, matcher: LLMatcher) -> None:
        """Look how large it is now, by a completion's place; as seldom as it has not grown for long."""
        self._look_in -= 1
        if self._look_in:
            return
        work = max(_work_of(matcher), self._work)
        more_bytes, self._work = (work - self._work) * BYTES_PER_WORK, work
        self._look_every = 1 if more_bytes > _GROWTH_BYTES else min(2 * self._look_every, LOOK_EVERY_MAX)
        self._look_in = self._look_every
        if more_bytes:
            self._on_change()

    def break_down(self) -> None:
        """Begin no completion any more."""
        if not self.is_broken:
            self.is_broken = True
            self._on_change()


class GrammarCompiler:
    """Compiles grammars for one tokenizer, and keeps the last used, within bounds. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._compiled = OrderedDict[_Wanted, Grammar]()
        self._alive = WeakSet[Grammar]()
        self._looking = Lock()

    def trial(self, params: SamplingParams) -> dict[str, Any] | None:
        """What `tried` needs to try the grammar of these settings; None if there is no need. Raises ConstraintError."""
        if not params.is_constrained or self._found(_wanted(params)) is not None:
            return None
        grammar, is_plain = _written(*_wanted(params))
        if is_plain:
            return None
        return {
            "tokenizer": str(self._require_tokenizer().path),
            "eos_token_ids": sorted(self._eos_token_ids),
            "grammar": grammar,
            "seconds": COMPILE_S_MAX,
            "bytes": COMPILE_BYTES_MAX,
        }

    def compile(self, params: SamplingParams, num_bytes: int = 0) -> Grammar | None:
        """The grammar these settings ask for, of a size that was tried; None if they ask for none.

        A grammar that has broken down is compiled again. Raises ConstraintError, and QueueFullError while requests hold
        grammars that leave no room for this one.
        """
        if not params.is_constrained:
            return None
        wanted = _wanted(params)
        # Two threads that want the same may both compile it; neither waits for another's grammar.
        found = self._found(wanted)
        grammar = found or self._compile(wanted, num_bytes)
        with self._looking:
            self._alive.add(grammar)
            self._compiled[wanted] = grammar
            self._compiled.move_to_end(wanted)
            self._forget()
            if found is None and self._is_over():
                self._compiled.pop(wanted, None)
                raise QueueFullError(
                    f"the constraints of all requests together take up the {GRAMMARS_BYTES_MAX >> 20} MiB kept for them"
                )
        return grammar

    def _found(self, wanted: _Wanted) -> Grammar | None:
        with self._looking:
            grammar = self._compiled.get(wanted)
        return grammar if grammar is not None and not grammar.is_broken else None

    def _change(self) -> None:
        """A grammar has grown or broken down. Where all take too much, the largest are given up."""
        with self._looking:
            self._forget()
            while self._is_over():
                largest = max(self._alive, key=lambda grammar: grammar.num_bytes)
                largest.is_broken = largest.is_given_up = True
                self._forget()

    def _forget(self) -> None:
        """Keep only sound grammars, the last used, within bounds."""
        for wanted in [wanted for wanted, grammar in self._compiled.items() if grammar.is_broken]:
            del self._compiled[wanted]
        while len(self._compiled) > GRAMMARS_MAX or (len(self._compiled) > 1 and self._is_over()):
            self._compiled.popitem(last=False)

    def _is_over(self) -> bool:
        return sum(grammar.num_bytes for grammar in self._alive) > GRAMMARS_BYTES_MAX

    def _compile(self, wanted: _Wanted, num_bytes: int) -> Grammar:
        grammar, _ = _written(*wanted)
        from llguidance import LLMatcher

        matcher = LLMatcher(self._known, grammar, log_level=0)
        if matcher.is_error():
            raise _unfit(matcher.get_error())
        return Grammar(matcher, num_bytes, self._change)

    @cached_property
    def _known(self) -> LLTokenizer:
        """The tokenizer in the library's form."""
        from llguidance import LLTokenizer

        return LLTokenizer(self._require_tokenizer().definition, eos_token=sorted(self._eos_token_ids) or None)

    def _require_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise ConstraintError("choices and schemas are about text, and this model has no tokenizer.json")
        return self._tokenizer


async def tried(trial: dict[str, Any]) -> int:
    """Compile a grammar in a process of its own, which ends with this call; the bytes it took.

    Raises ConstraintError for one that cannot be followed, or that COMPILE_S_MAX and COMPILE_BYTES_MAX do not suffice.
    """
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", str(_TRIAL), stdin=pipe, stdout=pipe, stderr=null, env=own_environment()
    )
    try:
        said, _ = await process.communicate(json.dumps(trial).encode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if not said:
        budget = f"{COMPILE_S_MAX} s or {COMPILE_BYTES_MAX >> 20} MiB"
        raise ConstraintError(f"this constraint takes more than {budget} to compile: simplify it")
    found = json.loads(said)
    if found["error"]:
        raise _unfit(found["error"])
    return int(found["bytes"])


def _work_of(matcher: LLMatcher) -> int:
    """The work that went into a grammar's automaton, for all completions together; its memory grows with it.

    The library tells it only in an error, so a copy is led into one.
    """
    copy = matcher.deep_copy()
    copy.rollback(sys.maxsize)
    found = _WORK.search(copy.get_error())
    return 0 if found is None else int(found[1])


def _wanted(params: SamplingParams) -> _Wanted:
    return params.json_schema, params.choices


def _unfit(reason: str) -> ConstraintError:
    first_line = reason.partition("\n")[0]
    return ConstraintError(f"this constraint cannot be followed: {first_line}")


def _written(schema: str | None, choices: tuple[str, ...]) -> tuple[str, bool]:
    """The grammar as the library reads it, and whether it is sure to be compiled in milliseconds."""
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise ConstraintError("choices and schemas need llguidance: pip install llguidance") from error
    if schema is None:
        # One terminal, which is an automaton; as rules, all choices that begin alike would be open at once.
        lark = "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text) for text in choices)
        return LLMatcher.grammar_from_lark(lark), len(lark) <= PLAIN_CHARS_MAX
    closed, is_plain = read_schema(schema)
    blanks = {"whitespace_pattern": WHITESPACE} if knows_bounds() else {"whitespace_flexible": False}
    try:
        return str(LLMatcher.grammar_from_json_schema(closed, blanks)), is_plain
    except ValueError as error:
        raise ConstraintError(f"json_schema is not a JSON schema: {error}") from error


@cache
def knows_bounds() -> bool:
    """Whether the library can bound blanks; otherwise a JSON text has none."""
    release = tuple(int(part) for part in version("llguidance").split(".")[:2])
    return release >= _BOUNDED_FROM


def read_schema(text: str) -> tuple[str, bool]:
    """The schema with its objects closed, and whether it is plain: compiled in milliseconds. Raises ConstraintError.

    An object whose `properties` are listed has no others unless `additionalProperties` says so, as at other servers. A
    schema that joins several into one, such as `allOf`, stays as it is: closed, they could exclude each other.
    """
    if len(text) > SCHEMA_CHARS_MAX:
        raise ConstraintError(f"json_schema has {len(text)} characters; at most {SCHEMA_CHARS_MAX} are possible")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"json_schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConstraintError("json_schema is not a JSON object")
    parts = list(_parts(schema))
    for part in parts:
        for name in _COUNTS:
            if _number(part, name) > ITEMS_MAX:
                raise ConstraintError(f"json_schema: {name} is {part[name]}; at most {ITEMS_MAX} is possible")
    if not any(map(_is_joined, parts)):
        for part in parts:
            if "properties" in part:
                part.setdefault("additionalProperties", False)
    is_plain = len(text) <= PLAIN_CHARS_MAX and all(map(_is_plain, parts))
    return json.dumps(schema), is_plain


def _parts(schema: object) -> Iterator[dict[str, Any]]:
    """The schema and all within it."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            yield part
            left += [value for name, value in part.items() if name in _OF_SCHEMAS]
            by_name = [value for name, value in part.items() if name in _OF_SCHEMAS_BY_NAME]
            left += [each for value in by_name if isinstance(value, dict) for each in value.values()]


def _is_joined(part: dict[str, Any]) -> bool:
    names = part.keys()
    return bool(names & _JOINING) or bool(names & _ABOUT_OBJECTS and names & _ALTERNATIVES)


def _is_plain(part: dict[str, Any]) -> bool:
    # What stands beside alternatives is joined with each of them, and that with each of the next level.
    is_joined = part.keys() & _ALTERNATIVES and len(part.keys() - _UNHEARD) > 1
    is_few = all(_number(part, name) <= _PLAIN_ITEMS_MAX for name in _COUNTS)
    return not is_joined and _PLAIN.issuperset(part) and is_few


def _number(part: dict[str, Any], name: str) -> float:
    value = part.get(name, 0)
    return value if isinstance(value, int | float) else 0
