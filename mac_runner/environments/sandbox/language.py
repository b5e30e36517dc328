"""What a template may be made of, and where its costs are counted.

A template is read, every part of it is looked for among those allowed, and what counts and checks is put around the
parts that print, loop, compare or call. Then Jinja compiles it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Final, cast

from jinja2 import TemplateSyntaxError, nodes
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from mac_runner.environments.sandbox.environment import COUNTED, SHOWN, SPENT, WEIGHED, Sandbox
from mac_runner.environments.sandbox.values import NESTING_MAX, PRINTABLE, is_too_large
from mac_runner.problems import suggestion

_CHARS_PER_STEP: Final = 4
_ALLOWED: Final = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Block, nodes.For, nodes.If, nodes.Macro),
    *(nodes.CallBlock, nodes.FilterBlock, nodes.Assign, nodes.AssignBlock, nodes.With, nodes.Scope),
    *(nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice),
    *(nodes.Concat, nodes.Compare, nodes.Operand, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv),
    *(nodes.Mod, nodes.Pow, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
)
_OTHER_FILES: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
_COSTS: Final = {nodes.Call: 40, nodes.CallBlock: 40, nodes.Filter: 10, nodes.FilterBlock: 10, nodes.Test: 10}
"""The steps of those parts that take longer than others."""
_TOO_DEEP: Final = "the template is nested too deep"
_UNWEIGHED_TESTS: Final = frozenset({"defined", "undefined"})


def parsed(sandbox: Sandbox, text: str) -> nodes.Template:
    """The template as a tree of allowed parts. Raises TemplateSyntaxError."""
    parser = Parser(sandbox, text)
    try:
        tree = parser.parse()
    except (RecursionError, ValueError, OverflowError) as fault:
        reason = _TOO_DEEP if isinstance(fault, RecursionError) else "the number is too large"
        raise TemplateSyntaxError(reason, parser.stream.current.lineno) from fault
    _check(tree, sandbox)
    return tree


def compiled(sandbox: Sandbox, tree: nodes.Template) -> CodeType:
    """The code of a tree, with its costs counted. Raises TemplateSyntaxError."""
    deepest = max(_with_depth(tree), key=lambda found: found[1])[0]
    try:
        _Metering().visit(tree)
        tree.set_environment(sandbox)
        with warnings.catch_warnings():
            # Python warns of what Jinja writes for `1[2:]`, which is refused where it is rendered.
            warnings.simplefilter("ignore", SyntaxWarning)
            return sandbox.compile(tree)
    except (RecursionError, SyntaxError, MemoryError) as fault:
        raise TemplateSyntaxError(_TOO_DEEP, deepest.lineno) from fault


def _check(tree: nodes.Template, sandbox: Sandbox) -> None:
    for node, depth in _with_depth(tree):
        if depth > NESTING_MAX:
            raise TemplateSyntaxError(f"{_TOO_DEEP}; {NESTING_MAX} levels are allowed", node.lineno)
        if isinstance(node, nodes.Const) and isinstance(node.value, int) and is_too_large(node.value):
            raise TemplateSyntaxError("the number is too large", node.lineno)
        if isinstance(node, _OTHER_FILES):
            raise TemplateSyntaxError("a template is one file and takes in no other; copy it in", node.lineno)
        if not isinstance(node, _ALLOWED):
            raise TemplateSyntaxError(f"a template has no {type(node).__name__}", node.lineno)
        if isinstance(node, nodes.For) and node.recursive:
            raise TemplateSyntaxError("a loop cannot be recursive; loop inside it", node.lineno)
        for kind, what, known in ((nodes.Filter, "filter", sandbox.filters), (nodes.Test, "test", sandbox.tests)):
            if isinstance(node, kind) and (node.name not in known or node.name.startswith("_")):
                names = sorted(name for name in known if name[0].isalpha())
                hint = suggestion(node.name, names) or f"; there are: {', '.join(names)}"
                raise TemplateSyntaxError(f"unknown {what} {node.name!r}{hint}", node.lineno)


def _with_depth(tree: nodes.Node) -> Iterator[tuple[nodes.Node, int]]:
    """Every node with its depth, in the order of the template."""
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack += [(child, depth + 1) for child in reversed(list(node.iter_child_nodes()))]


class _Metering(NodeTransformer):
    """Puts what counts and checks around the parts of a template."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802 - named after the node
        """Only text and numbers are printed."""
        node.nodes = [self._shown(child) for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """So are the parts of a joined text."""
        node.nodes = [self._shown(child) for child in node.nodes]
        return _around(node, WEIGHED)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """A loop costs its body for each entry."""
        steps = _steps([*node.body, node.test])
        self.generic_visit(node)
        node.iter = _around(cast("nodes.Expr", node.iter), COUNTED, steps)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        """A macro costs its body each time."""
        return self._spending(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        """A block that a macro calls costs its body too."""
        return self._spending(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """A comparison looks at all of both sides."""
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = _weighed(operand.expr)
        node.expr = _weighed(node.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        """A test may look at all of its value."""
        self.generic_visit(node)
        if node.name not in _UNWEIGHED_TESTS:
            node.node = _weighed(node.node)
            node.args = [_weighed(argument) for argument in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """A slice is a copy."""
        self.generic_visit(node)
        return _around(node, WEIGHED) if isinstance(node.arg, nodes.Slice) else node

    def _spending(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        steps = _steps(node.body)
        self.generic_visit(node)
        spent = nodes.ExprStmt(_around(nodes.Const("", lineno=node.lineno), SPENT, steps), lineno=node.lineno)
        node.body.insert(0, spent)
        return node

    def _shown(self, node: nodes.Expr) -> nodes.Expr:
        if isinstance(node, nodes.TemplateData) or (isinstance(node, nodes.Const) and type(node.value) in PRINTABLE):
            return node
        name = _name_of(node)
        seen = self.visit(node)
        return _around(seen, SHOWN, name)


def _around(node: nodes.Expr, name: str, *args: object) -> nodes.Filter:
    given: list[nodes.Expr] = [nodes.Const(value, lineno=node.lineno) for value in args]
    return nodes.Filter(node, name, given, [], None, None, lineno=node.lineno)


def _weighed(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _around(node, WEIGHED)


def _steps(body: Sequence[nodes.Node | None]) -> int:
    """What a body costs each time, without the loops and macros in it, which count for themselves."""
    steps, stack = 1, [node for node in body if node is not None]
    while stack:
        node = stack.pop()
        steps += _COSTS.get(type(node), 1)
        if isinstance(node, nodes.TemplateData):
            steps += len(node.data) // _CHARS_PER_STEP
        elif isinstance(node, nodes.Const) and isinstance(node.value, str):
            steps += len(node.value) // _CHARS_PER_STEP
        elif isinstance(node, nodes.For):
            stack.append(node.iter)
        elif not isinstance(node, nodes.Macro):
            stack += node.iter_child_nodes()
    return steps


def _name_of(node: nodes.Expr) -> str | None:
    """How the template names what it prints; None where that is more than a name."""
    match node:
        case nodes.Name():
            return node.name
        case nodes.Getattr() if name := _name_of(node.node):
            return f"{name}.{node.attr}"
        case _:
            return None
