"""What makes the package dear to move: how far tests reach into it, and how many of its sentences they hold.

    python -m tests.meter

prints both counts and the files with the most. A room's face is its `__init__` or its `testing`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "mac_runner"
SUITES = ("mac_runner.environments", "mac_runner.backends")
"""The rooms whose folders are rooms of their own."""
PATH = re.compile(r"mac_runner(\.\w+)+")
SENTENCE = re.compile(r"(?:\b[A-Za-z']+\b.*?){4}", re.DOTALL)
ASKED = ("ends", "refused", "done")
"""What of an ended command takes a sentence that it must have said."""


class Reach(NamedTuple):
    """What a file of tests holds on to: imports below a face, and functions that hold four words or more."""

    imports: int
    sentences: int


def reach(source: str) -> Reach:
    """Count in the text of one file."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Reach(sum(map(is_below_a_face, modules(tree))), sum(map(has_sentence, functions)))


def modules(tree: ast.Module) -> Iterator[str]:
    """The modules of each import, and of each path in a string, such as of what is patched."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                yield from {module_of(f"{module}.{alias.name}") for alias in names}
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.Constant(value=str(path)) if PATH.fullmatch(path):
                yield module_of(path)


def module_of(path: str) -> str:
    """The module in which a dotted path ends, of which the last parts may be names inside it."""
    file = PACKAGE.parent / path.replace(".", "/")
    is_one = file.is_dir() or file.with_suffix(".py").exists() or "." not in path
    return path if is_one else module_of(path.rpartition(".")[0])


def is_below_a_face(module: str) -> bool:
    """Whether a module of the package lies inside a room."""
    room = next((f"{suite}." for suite in SUITES if module.startswith(f"{suite}.")), "mac_runner.")
    inside = module.removeprefix(room).split(".")[1:]
    if room != "mac_runner." and not inside:  # A module of the suite itself, and not a room in it.
        inside = [] if PACKAGE.joinpath(*module.split(".")[1:]).is_dir() else [module]
    return module.startswith("mac_runner.") and inside not in ([], ["testing"])


def has_sentence(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it asserts a string of four words or more, has one matched or asks for one, or has one as a parameter."""
    strings = (node.value for part in held(function) for node in ast.walk(part) if isinstance(node, ast.Constant))
    return any(isinstance(value, str) and SENTENCE.search(value) for value in strings)


def held(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.expr]:
    """What a test compares with. Of its parameters some are only put in: they count all the same."""
    for node in ast.walk(function):
        match node:
            case ast.Assert(test=test):
                yield test
            case ast.keyword(arg="match", value=value):
                yield value
            case ast.Call(func=ast.Attribute(attr=name), args=arguments, keywords=named) if name in ASKED:
                yield from (*arguments, *(one.value for one in named))
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[_, *values]):
                yield from values


def main() -> None:
    """Print the counts."""
    found = {path.relative_to(TESTS).as_posix(): reach(path.read_text()) for path in sorted(TESTS.rglob("*.py"))}
    for name, of in (("imports below a room's face", 0), ("functions that hold a sentence", 1)):
        counts = Counter({path: counted[of] for path, counted in found.items()})
        print(f"{sum(counts.values()):6,}  {name}")  # noqa: T201 - this is a program
        for path, count in counts.most_common(5):
            print(f"{count:12}  {path}")  # noqa: T201


if __name__ == "__main__":
    main()
