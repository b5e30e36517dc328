"""The words of prompts as Jinja templates: the built-in one, and those of one's own, sandboxed and checked beforehand.

A template is three blocks: `system`, and the user message in its `first_round` and `later_round` forms. A template of
one's own may leave out blocks; the built-in ones stand in for them. It is given the fields of `FIELDS` and no others,
text of models only as it may be shown (`markup.defuse`), and it is tried on a sample before anything runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypedDict

from jinja2 import Environment, StrictUndefined, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mac_runner.config.problems import suggestion
from mac_runner.environments.discussion.default_template import DEFAULT_TEMPLATE
from mac_runner.errors import ConfigError, ConversationError
from mac_runner.limits import PROMPT_CHARS_MAX

BLOCKS: Final = ("system", "first_round", "later_round")
FIELDS: Final = (
    "agent",
    "ask",
    "asides",
    "choices",
    "context",
    "correction",
    "duty",
    "identity",
    "identity_place",
    "is_last_round",
    "members",
    "others",
    "question",
    "question_type",
    "reply_format",
    "role",
    "round",
    "rounds",
    "statements",
)
"""What a template may name; docs/discussion.md says what each of them is."""


class _Options(TypedDict):
    undefined: type[StrictUndefined]
    trim_blocks: bool
    lstrip_blocks: bool


_IMPLIED: Final = ("loop", "caller", "varargs", "kwargs")
"""What Jinja itself defines inside loops and macros."""

_EXPONENT_MAX: Final = 64
_OPTIONS: Final[_Options] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}

Values = Mapping[str, object]


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a slip such as `"-" * 10 ** 10` does not take the machine's memory either."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """A product or a power, unless it would be out of all proportion."""
        for one, other in ((left, right), (right, left)):
            if isinstance(other, int) and isinstance(one, str | list | tuple) and len(one) * other > PROMPT_CHARS_MAX:
                raise SecurityError(f"repeats a text past {PROMPT_CHARS_MAX} characters")
        if operator == "**" and isinstance(right, int) and right > _EXPONENT_MAX:
            raise SecurityError(f"the exponent {right} is more than {_EXPONENT_MAX}")
        return super().call_binop(context, operator, left, right)


class PromptTemplate:
    """The three blocks of a prompt, ready to be rendered."""

    def __init__(self, own: str | None = None, *, source: str = "template") -> None:
        """Raises ConfigError naming `source`, the line and the remedy when `own` cannot be used."""
        self._source = source
        self._globals = dict(_environment().globals)
        # The built-in template is our own and needs no sandbox, which costs several times what rendering does.
        self._default = default = Environment(**_OPTIONS).from_string(DEFAULT_TEMPLATE)  # noqa: S701 - no HTML
        self._blocks = {name: (default, default.blocks[name]) for name in BLOCKS}
        if own is not None:
            template = _compiled(own, source)
            self._blocks |= {name: (template, block) for name, block in template.blocks.items()}

    def render(self, block: str, values: Values) -> str:
        """One block with its values, without blank lines at its ends.

        Raises ConversationError, naming the line, when the template cannot be rendered with these values.
        """
        template, render = self._blocks[block]
        try:
            # With all names in one mapping Jinja makes no copy of it.
            context = template.new_context({**self._globals, **values}, shared=True)
            pieces = render(context)
            return "".join(pieces if template is self._default else _bounded(pieces)).strip("\n")
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
            raise ConversationError(
                f"{self._source}:{_line_of(fault, template)}: block {block}: {fault}; mend it"
            ) from fault


def _bounded(pieces: Iterable[str]) -> Iterator[str]:
    """The pieces of a text that is no longer than a prompt may be."""
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > PROMPT_CHARS_MAX:
            raise SecurityError(f"writes more than {PROMPT_CHARS_MAX} characters")
        yield piece


def _environment() -> ImmutableSandboxedEnvironment:
    return _Sandbox(**_OPTIONS)


def _compiled(text: str, source: str) -> Template:
    environment = _environment()
    try:
        tree = environment.parse(text)
        _refuse_unknown(tree, source)
        return environment.from_string(text)
    except TemplateSyntaxError as fault:
        raise ConfigError(f"{source}:{fault.lineno}: {fault.message}; mend the template") from fault


def _refuse_unknown(tree: nodes.Template, source: str) -> None:
    blocks = list(tree.find_all(nodes.Block))
    if not blocks:
        raise ConfigError(f"{source}:1: the template has no block; write {{% block NAME %}} with {', '.join(BLOCKS)}")
    for block in blocks:
        if block.name not in BLOCKS:
            raise ConfigError(f"{source}:{block.lineno}: unknown block {block.name!r}{suggestion(block.name, BLOCKS)}")
    for kind in (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends):
        if (found := tree.find(kind)) is not None:
            raise ConfigError(f"{source}:{found.lineno}: a template is one file and takes in no other; copy it in")
    made = {name.name for name in tree.find_all(nodes.Name) if name.ctx in ("store", "param")}
    made |= {macro.name for macro in tree.find_all(nodes.Macro)}
    for name in tree.find_all(nodes.Name):
        if name.name not in {*FIELDS, *made, *_environment().globals, *_IMPLIED}:
            raise ConfigError(f"{source}:{name.lineno}: unknown field {name.name!r}{suggestion(name.name, FIELDS)}")


def _line_of(fault: BaseException, template: Template) -> int:
    """The line of the template at which `fault` was raised, from the line of the code that Jinja made of it."""
    lines = [frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == "<template>"]
    return template.get_corresponding_lineno(lines[-1] or 1) if lines else 1
