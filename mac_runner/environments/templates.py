"""Prompts as Jinja templates: the built-in one of an environment, and a user's own in Jinja's sandbox.

A template is a number of blocks. A user's template may leave out blocks; the built-in ones replace them. It is given
the fields of its environment and no others, and text of models only as it may be shown (`markup.defuse`).

Jinja's sandbox keeps a template from Python. This one bounds what a rendering costs as well: every value is measured
where it is used. Steps are counted and not timed, and only texts and numbers become text (what Python prints of
another object may hold its address), so a template writes the same, or fails at the same place, in every process.
"""

from __future__ import annotations

import json
import pkgutil
import re
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import cache, partial
from itertools import chain
from types import BuiltinMethodType, MethodType
from typing import Any, Final, cast

from jinja2 import Environment, StrictUndefined, Template, TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.tests import TESTS
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from mac_runner.environments.markup import defuse
from mac_runner.errors import ConfigError, ConversationError
from mac_runner.problems import suggestion

_STEPS_MAX: Final = 10_000_000
"""A step is a part of the template or a character, each time that it is used."""
_STEPS_PER_ENTRY: Final = 10
"""An entry of a list takes the memory of some characters."""
_STEPS_PER_CALL: Final = 50
"""So does a filter, a test, a method or a macro take the time of some parts."""
_MACRO_DEPTH_MAX: Final = 32
_LIST_DEPTH_MAX: Final = 16
_NUMBER_BITS_MAX: Final = 4_096
_PRECISION_MAX: Final = 99

_SMALL: Final = (int, float, type(None))
_LISTS: Final = (list, tuple, dict, range)
_PRINTABLE: Final = (str, int, float, Undefined)

_METER: Final = "_meter"
"""Under this name a context carries its meter. No template can say it: it is none of the fields."""
_LEFT_OUT: Final = frozenset(
    [
        *("attr", "e", "escape", "filesizeformat", "forceescape", "pprint", "random", "safe", "sameas", "striptags"),
        *("urlencode", "urlize", "wordwrap", "xmlattr"),
    ]
)
"""Filters and tests of Jinja's that are for HTML, are random, or tell of objects."""
_OF_TEXT: Final = frozenset(
    [
        *("capitalize", "center", "format", "indent", "lower", "replace", "string", "title", "trim", "truncate"),
        *("upper", "wordcount"),
    ]
)
_GROWING: Final = frozenset(
    ["batch", "center", "expandtabs", "indent", "join", *("ljust", "replace", "rjust", "slice", "zfill")]
)
"""Filters and methods that may make a text or a list many times as long as the one they are given."""
_OF_UNDEFINED: Final = frozenset({"d", "default", "defined", "undefined"})
_GLOBALS: Final[dict[str, object]] = {"namespace": Namespace, "range": safe_range}
_IMPLIED: Final = ("loop", "caller", "varargs", "kwargs")
"""What Jinja itself defines inside loops and macros."""
_FAULTS: Final = (
    *(TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)
"""What a template raises: Jinja's errors, and what its filters and the operations on values raise in plain Python."""

Values = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The templates of one environment."""

    blocks: tuple[str, ...]
    fields: tuple[str, ...]
    """What a template may name."""
    default: str
    """The text of the built-in template."""


class PromptTemplate:
    """The blocks of a prompt, ready to be rendered."""

    def __init__(self, kind: Kind, own: str | None = None, *, source: str = "template") -> None:
        """Raises ConfigError naming `source`, the line and the remedy when `own` cannot be used."""
        self._source = source
        self._default = default = built_in(kind.default)
        self._blocks = {name: (default, default.blocks[name]) for name in kind.blocks}
        if own is not None:
            template = _compiled(kind, own, source)
            self._blocks |= {name: (template, block) for name, block in template.blocks.items()}

    def render(self, block: str, values: Values) -> str:
        """One block with its values, without blank lines at its ends.

        Raises ConversationError, naming the line, when the template cannot be rendered with these values.
        """
        template, render = self._blocks[block]
        # With all names in one mapping Jinja makes no copy of it.
        is_own = template is not self._default
        named = {**_GLOBALS, **values, _METER: _Meter()} if is_own else values
        try:
            text = "".join(cast("Generator[str]", render(template.new_context(named, shared=True))))
            if is_own:
                text.encode()  # Fails for half of a surrogate pair, which an escape can write.
        except _FAULTS as fault:
            where = f"{self._source}:{_line_of(fault, template)}: block {block}"
            raise ConversationError(f"{where}: {fault}; mend it") from fault
        return text.strip("\n")


def shipped(module: str, name: str) -> str:
    """The text of a template that lies beside a module."""
    data = pkgutil.get_data(module, name)
    assert data is not None, "modules are files"
    return data.decode()


@contextmanager
def said_of_template(*section: str, file: str | None) -> Iterator[None]:
    """What is refused of a user's template names the key of `section` that gives the template, or its file."""
    try:
        yield
    except (ConfigError, ConversationError) as fault:
        key = (*section, "template_file" if file else "template")
        raise ConfigError.at(key, str(fault)) from fault


def parts_of(template: Template, names: Sequence[str], values: Values) -> dict[str, str]:
    """Blocks of a template of our own that become fields of prompts, by name."""
    context = template.new_context({**values}, shared=True)
    return {name: "".join(template.blocks[name](context)).strip("\n") for name in names}


@cache
def built_in(text: str) -> Template:
    """A template of our own. It needs no sandbox, which costs several times what rendering does."""
    plain = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - no HTML
    plain.filters["defuse"] = defuse
    return plain.from_string(text)


def _line_of(fault: BaseException, template: Template) -> int:
    """The line of the template at which `fault` was raised, from the line of the code that Jinja made of it."""
    lines = [frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == "<template>"]
    return template.get_corresponding_lineno(lines[-1] or 1) if lines else 1


class _Meter:
    """Counts what one rendering costs. Raises SecurityError when it is too much."""

    __slots__ = ("depth", "steps_left")

    def __init__(self) -> None:
        self.steps_left = _STEPS_MAX
        self.depth = 0

    def spend(self, steps: int) -> None:
        """Count `steps`."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise SecurityError(f"takes more than {_STEPS_MAX} steps; make its loops, macros and texts smaller")

    def weigh(self, value: object, depth: int = 0) -> None:
        """Count all that `value` holds. Raises what says so when it is undefined or no data."""
        if isinstance(value, str):
            self.spend(1 + len(value))
        elif isinstance(value, _LISTS):
            if depth == _LIST_DEPTH_MAX:
                raise SecurityError(f"nests lists more than {_LIST_DEPTH_MAX} deep")
            self.spend(1 + _STEPS_PER_ENTRY * len(value))
            if not isinstance(value, range):
                for entry in chain(value, value.values()) if isinstance(value, dict) else value:
                    self.weigh(entry, depth + 1)
        elif isinstance(value, int) and value.bit_length() > _NUMBER_BITS_MAX:
            raise SecurityError(f"computes a number of more than {_NUMBER_BITS_MAX} bits")
        elif isinstance(value, _SMALL) or is_dataclass(value):
            self.spend(1)
        else:
            _printed(value)


def _meter_of(context: Context) -> _Meter:
    return cast("_Meter", context.parent[_METER])


def _printed(value: object) -> str:
    """A text or a number as text. Raises what says what is undefined, or what to write instead."""
    if isinstance(value, _PRINTABLE):
        return str(value)
    match value:
        case list() | tuple() | range():
            reason = "a list is no text; write {{ VALUE | join(', ') }}"
        case dict():
            reason = "a mapping is no text; name an entry of it"
        case MethodType() | BuiltinMethodType() | Macro():
            reason = "a method or a macro is no text; call it: {{ VALUE() }}"
        case _ if is_dataclass(value):
            reason = (
                f"a record is no text; name a field of it: {{{{ VALUE.{next(iter(value.__dataclass_fields__))} }}}}"
            )
        case _:
            reason = f"{type(value).__name__} is no text; name what of it is meant"
    raise SecurityError(reason)


@pass_context
def _shown(context: Context, value: object) -> str:
    """What is put around all that a template prints, or joins with `~`."""
    _meter_of(context).weigh(text := _printed(value))
    return text


@pass_context
def _weighed(context: Context, value: object) -> object:
    """What is put around operands that are compared, looked up or sliced, which may take all of them."""
    _meter_of(context).weigh(value)
    return value


@pass_context
def _counted(context: Context, value: Sized, steps: int) -> object:
    """What is put around a list that is looped over; its loop takes so many steps for each entry."""
    meter = _meter_of(context)
    meter.weigh(value)
    meter.spend(abs(steps) * (len(value) + 1))
    return value


def _format(value: str, *args: object, **named: object) -> object:
    if re.search(r"[*]|\d{3}", value):
        raise SecurityError("takes a width of a format from its values, or one of more than 99")
    return FILTERS["format"](value, *args, **named)


def _join(value: Sequence[object], between: object = "") -> str:
    return _printed(between).join(map(_printed, value))


def _round(value: float, precision: int = 0, method: str = "common") -> object:
    if abs(precision) > _PRECISION_MAX:
        raise SecurityError(f"rounds to more than {_PRECISION_MAX} places")
    return FILTERS["round"](value, precision, method)


def _sum(value: Sequence[float]) -> float:
    return sum(value)


def _tojson(value: object) -> str:
    return json.dumps(value, sort_keys=True)


_OWN: Final = {"format": _format, "join": _join, "round": _round, "sum": _sum, "tojson": _tojson}
"""In place of those of Jinja's whose cost has no bound, or that print what is no text."""


def _bounded(name: str, run: Callable[..., object]) -> Callable[..., object]:
    """A filter or a test of Jinja's, or one of ours in its place, within the measure."""
    takes = getattr(run, "jinja_pass_arg", None)

    def bounded(context: Context, *args: object, **named: object) -> object:
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        bound = run if takes is None else partial(run, first[takes.name])
        if name in _OF_TEXT:
            args = (_printed(args[0]), *args[1:])
            for given in (*args[1:], *named.values()):
                _printed(given)
        return _measured(_meter_of(context), name, bound, args, named)

    return pass_context(bounded)


def _measured(
    meter: _Meter, name: str, run: Callable[..., object], args: Sequence[Any], named: Mapping[str, Any]
) -> object:
    """What a filter, a test or a method makes of its values, as plain data. What is made bit by bit is a list."""
    meter.spend(_STEPS_PER_CALL)
    is_lenient = name in _OF_UNDEFINED and isinstance(args[0], Undefined)
    for value in (*args[is_lenient:], *named.values()):
        meter.weigh(value)
    if name in _GROWING:
        _check_growth(*args, *named.values())
    result = run(*args, **named)
    if not isinstance(result, (str, *_SMALL, *_LISTS, Undefined)):
        result = list(cast("Sequence[object]", result))
    if not isinstance(result, Undefined):
        meter.weigh(result)
    return result


def _check_growth(value: object, *others: object) -> None:
    """Refuse what may be so many times as long as `value`, before it is made."""
    times = [len(each) if isinstance(each, Sized) else abs(each) for each in others if isinstance(each, Sized | int)]
    if max(times, default=0) * (len(value) if isinstance(value, Sized) else 1) > _STEPS_MAX:
        raise SecurityError(f"makes a text or a list past {_STEPS_MAX} characters")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Where the templates of users are rendered."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%"})

    def __init__(self) -> None:
        # What is constant would be computed while it is compiled, where nothing is measured.
        super().__init__(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_shown, optimized=False
        )
        filters: dict[str, Any] = {**FILTERS, **_OWN}
        tests: dict[str, Any] = {**TESTS}
        self.filters = {name: _bounded(name, filters[name]) for name in filters.keys() - _LEFT_OUT}
        self.tests = {name: _bounded(name, tests[name]) for name in tests.keys() - _LEFT_OUT}
        self.globals = {}

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Whether it is a field, or a method that changes nothing and makes no more than `_GROWING` says."""
        if attr in getattr(type(obj), "__dataclass_fields__", ()):
            return True  # What nearly all templates ask for, and Jinja's answer takes several microseconds.
        return attr not in ("encode", "translate") and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:
        """An operation on numbers, texts or lists."""
        meter = _meter_of(context)
        meter.weigh(left)
        meter.weigh(right)
        if operator == "%" and isinstance(left, str):
            raise SecurityError("a text has no %; write {{ '%.2f' | format(NUMBER) }}")
        for one, other in ((left, right), (right, left)):
            if operator == "*" and isinstance(one, Sized):
                _check_growth(one, other)
        result = super().call_binop(context, operator, left, right)
        meter.weigh(result)
        return result

    def call(self, context: Context, obj: object, /, *args: object, **named: object) -> object:
        """What a macro or a method returns; nothing else can be called."""
        meter, owner = _meter_of(context), getattr(obj, "__self__", None)
        # Jinja hands these to functions that take the context, and there are none.
        named = {name: value for name, value in named.items() if name not in ("_loop_vars", "_block_vars")}
        if isinstance(obj, BuiltinMethodType) and isinstance(owner, str | list | tuple | dict):
            return _measured(meter, obj.__name__, lambda _, *rest, **more: obj(*rest, **more), (owner, *args), named)
        meter.spend(_STEPS_PER_CALL)
        if isinstance(obj, Undefined):
            meter.weigh(obj)
        for value in (*args, *named.values()):
            if not isinstance(value, Macro):  # Such as `caller`.
                meter.weigh(value)
        if not (isinstance(obj, Macro) or obj in _GLOBALS.values() or isinstance(owner, LoopContext)):
            raise SecurityError(f"{type(obj).__name__} cannot be called; macros and methods can")
        if meter.depth == _MACRO_DEPTH_MAX:
            raise SecurityError(f"calls macros more than {_MACRO_DEPTH_MAX} deep; does one call itself?")
        meter.depth += 1
        result = context.call(cast("Callable[..., object]", obj), *args, **named)
        meter.depth -= 1
        return result


_OPERANDS: Final = {
    nodes.Concat: _shown,
    nodes.Compare: _weighed,
    nodes.Operand: _weighed,
    nodes.Getitem: _weighed,
    nodes.Pair: _weighed,
}


class _Metering(NodeTransformer):
    """Puts what measures around the parts of a template that the sandbox does not see."""

    def generic_visit(self, node: nodes.Node, *args: Any, **named: Any) -> nodes.Node:
        """The parts first, then what is around them."""
        super().generic_visit(node, *args, **named)
        if (hook := _OPERANDS.get(type(node))) is not None:
            for name, value in [*node.iter_fields()]:
                if isinstance(value, list):
                    value[:] = [_around(part, hook) for part in value]
                else:
                    setattr(node, name, _around(value, hook))
        elif isinstance(node, nodes.For):
            node.iter = _around(node.iter, _counted, _steps([*node.body, node.test]))
        elif isinstance(node, nodes.Macro | nodes.CallBlock):
            # A macro takes its steps each time that it is called, as a loop over an empty text would.
            spent = _around(nodes.TemplateData(""), _counted, _steps(node.body))
            node.body.insert(0, nodes.ExprStmt(spent, lineno=node.lineno))
        return node


def _around(part: Any, hook: Callable[..., object], *args: object) -> Any:
    if not isinstance(part, nodes.Expr) or isinstance(part, nodes.Slice):
        return part
    return nodes.Filter(part, hook.__name__, [nodes.Const(each) for each in args], [], None, None, lineno=part.lineno)


def _steps(body: Sequence[nodes.Node | None]) -> int:
    parts = [part for node in body if node is not None for part in (node, *node.find_all(nodes.Node))]
    return sum(len(part.data) if isinstance(part, nodes.TemplateData) else 1 for part in parts)


_OTHER_FILES: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


def _compiled(kind: Kind, text: str, source: str) -> Template:
    """A user's template. Raises ConfigError with the line of what it may not say."""
    sandbox = _Sandbox()
    parser = Parser(sandbox, text)
    line = None
    try:
        tree = parser.parse()
        parts = [*_with_depth(tree)]
        line = max(parts, key=lambda found: found[1])[0].lineno
        _check(kind, [node for node, _ in parts], sandbox)
        # Only now, so that no template can name them. What they do costs steps, and nothing else.
        sandbox.filters |= {hook.__name__: hook for hook in (_counted, _shown, _weighed)}
        return Template.from_code(sandbox, sandbox.compile(_Metering().visit(tree)), {})
    except TemplateSyntaxError as fault:
        raise ConfigError(f"{source}:{fault.lineno}: {fault.message}") from fault
    except (RecursionError, MemoryError, OverflowError, SyntaxError, ValueError) as fault:
        # Python's own bounds, on the nesting of the code that Jinja makes and on the digits of a number.
        where = f"{source}:{line or parser.stream.current.lineno}"
        raise ConfigError(f"{where}: it is nested too deep, or a number is too large; mend the template") from fault


def _with_depth(tree: nodes.Node) -> Generator[tuple[nodes.Node, int]]:
    """Every node with its depth, in the order of the template."""
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack += [(child, depth + 1) for child in reversed([*node.iter_child_nodes()])]


def _check(kind: Kind, parts: Sequence[nodes.Node], sandbox: _Sandbox) -> None:
    """Raise TemplateSyntaxError for what is unknown, and what no template has."""
    made = {part.name for part in parts if isinstance(part, nodes.Macro)}
    made |= {part.name for part in parts if isinstance(part, nodes.Name) and part.ctx != "load"}
    if not any(isinstance(part, nodes.Block) for part in parts):
        raise TemplateSyntaxError(
            f"the template has no block; write {{% block NAME %}} with {', '.join(kind.blocks)}", 1
        )
    known: dict[type[nodes.Node], tuple[str, Collection[str], Collection[str]]] = {
        nodes.Block: ("block", kind.blocks, kind.blocks),
        nodes.Filter: ("filter", sandbox.filters, sandbox.filters),
        nodes.Test: ("test", sandbox.tests, sandbox.tests),
        nodes.Name: ("field", {*kind.fields, *made, *_GLOBALS, *_IMPLIED}, kind.fields),
    }
    for part in parts:
        if isinstance(part, _OTHER_FILES):
            raise TemplateSyntaxError("a template is one file and takes in no other; copy it in", part.lineno)
        if isinstance(part, nodes.ScopedEvalContextModifier | nodes.Pow):
            raise TemplateSyntaxError("a template has no autoescape and no **", part.lineno)
        what, names, listed = known.get(type(part), ("", (), ()))
        if what and (name := cast("nodes.Name", part).name) not in names:
            raise TemplateSyntaxError(f"unknown {what} {name!r}{suggestion(name, listed)}", part.lineno)
