"""The size and shape of the package: code by room, files, circles of imports. `python -m benchmarks.house`

Code is what is left without blank lines, comments, docstrings and imports. Budgets stand in `pyproject.toml`, under
`[tool.house]`. With `--check` only what exceeds them is said, and the exit code is 1.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One file of the package: how many lines of each kind it has, and the files it imports, annotations counted."""

    room: str
    lines: int
    code: int
    imports: int
    uses: set[str]


class House(NamedTuple):
    """The figures of a package. `circles` are files that import one another in a ring."""

    modules: Mapping[str, Module]
    code: Counter[str]
    chain: int
    floors: int
    circles: list[list[str]]

    def figures(self) -> dict[str, int]:
        """What has a budget, by its key in `[tool.house]`."""
        largest = max(module.lines for module in self.modules.values())
        shape = {"files": len(self.modules), "largest": largest, "chain": self.chain, "floors": self.floors}
        return {"code": self.code.total(), **shape, **{f"rooms.{room}": count for room, count in self.code.items()}}


def read_house(root: Path = ROOT) -> House:
    """Read the package below `root`."""
    paths = {path.relative_to(root).as_posix(): path for path in sorted((root / "mac_runner").rglob("*.py"))}
    known = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in paths}
    modules = {name: _module(name, path.read_text("utf-8"), known) for name, path in paths.items()}
    code, rooms = Counter[str](), dict[str, set[str]]()
    for name, module in modules.items():
        code[module.room] += module.code
        # A module beside the folders is a floor of its own. The package's face, which shows all rooms, is none.
        folder = name.split("/")[1]
        rooms.setdefault(folder, set()).update({other.split("/")[1] for other in module.uses} - {folder, "__init__.py"})
    rooms.pop("__init__.py", None)
    chain, circles = _height({name: module.uses for name, module in modules.items()})
    floors, _ = _height(rooms)
    return House(modules, code, chain, floors, circles)


def _module(name: str, text: str, known: Mapping[str, str]) -> Module:
    imports, docstrings, uses = set[int](), set[int](), set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(_lines(node))
            uses.update(_targets(node, known))
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            docstrings.update(_lines(node.body[0]))
    rows = text.splitlines()
    written = {number for number, row in enumerate(rows, 1) if row.strip() and not row.strip().startswith("#")}
    _, *folders, _ = name.split("/")
    # The kinds of conversation are rooms of their own.
    room = "/".join(folders[: 2 if folders[:1] == ["environments"] else 1])
    return Module(room or "ground", len(rows), len(written - imports - docstrings), len(imports), uses - {name})


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _targets(node: ast.Import | ast.ImportFrom, known: Mapping[str, str]) -> Iterator[str]:
    for alias in node.names:
        module = alias.name if isinstance(node, ast.Import) else node.module or ""
        found = known.get(f"{module}.{alias.name}") or known.get(module)
        if found is not None:
            yield found


def _height(uses: Mapping[str, set[str]]) -> tuple[int, list[list[str]]]:
    """The longest chain of imports, and the circles: each counts as one member of a chain."""
    home, circles = {name: name for name in uses}, list[list[str]]()
    while True:
        arrows: dict[str, set[str]] = {home[name]: set() for name in uses}
        for name, others in uses.items():
            arrows[home[name]] |= {home[other] for other in others} - {home[name]}
        floors: dict[str, int] = {}
        try:
            for name in TopologicalSorter(arrows).static_order():
                floors[name] = 1 + max((floors[other] for other in arrows[name]), default=0)
        except CycleError as error:
            first, *others = members = error.args[1][1:]
            circles.append(members)
            home = {name: first if at in others else at for name, at in home.items()}
        else:
            return max(floors.values()), circles


def read_budgets(root: Path = ROOT) -> dict[str, int]:
    """The budgets by the keys of `House.figures`."""
    shape = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["house"]
    rooms = {f"rooms.{room}": limit for room, limit in shape.pop("rooms").items()}
    return {**shape, **rooms}


def exceeded(house: House, limits: Mapping[str, int]) -> Iterator[str]:
    """What is above its budget, or has none, in words."""
    for key, value in house.figures().items():
        if key not in limits:
            yield f"{key} is {value:,} and has no budget"
        elif value > limits[key]:
            yield f"{key} is {value:,}, above its budget of {limits[key]:,}"
    for circle in house.circles:
        yield f"a circle of imports: {' → '.join(circle)}"


def describe(house: House, root: Path = ROOT) -> Iterator[str]:
    """All figures, a line for each kind."""
    figures = house.figures()
    lines, imports = (sum(getattr(module, kind) for module in house.modules.values()) for kind in ("lines", "imports"))
    name, largest = max(house.modules.items(), key=lambda each: each[1].lines)
    yield f"{lines:,} lines in {len(house.modules)} files, {lines / len(house.modules):.0f} in the mean"
    yield f"the largest is {name} with {largest.lines:,}"
    yield f"{figures['code']:,} lines of code; with imports, of which it is {imports / (imports + figures['code']):.1%}"
    yield f"longest chain of imports {house.chain}, floors {house.floors}, circles {len(house.circles)}"
    for folder, suffix in (("tests", "*.py"), ("docs", "*.md")):
        lengths = [len(path.read_text("utf-8").splitlines()) for path in (root / folder).rglob(suffix)]
        yield f"{folder}: {sum(lengths):,} lines in {len(lengths)} files"
    yield from (f"{count:7,}  {room}" for room, count in house.code.most_common())


def main() -> int:
    """Print the figures; with `--check`, what exceeds its budget."""
    house = read_house()
    if "--check" not in sys.argv:
        print("\n".join(describe(house)))
        return 0
    faults = list(exceeded(house, read_budgets()))
    for fault in faults:
        print(f"pyproject.toml, [tool.house]: {fault}; make it smaller, or raise it and say why", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
