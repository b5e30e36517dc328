"""The rooms and what each may do, read off the source: imports from the left only, and one place per privilege."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.house import read_house

PACKAGE = Path(__file__).parents[1] / "mac_runner"

GROUND = (
    *("errors", "tokens", "types", "clock", "descriptors", "files", "printable", "section", "problems", "latency"),
    *(
        "intervals",
        "bottleneck",
        "compared",
        "paired",
        "ratings",
        "flat",
        "results",
        "view_model",
        "structs",
    ),
    *("rewards", "weights", "checkpoints", "threads", "plugins", "registry", "spec", "secrecy", "extras", "__init__"),
    *("failures", "measures", "steps", "client_settings", "http_library"),
)

# Who may import whom, besides itself and the ground floor; written out, so that a new arrow is a decision. Two things
# are finer than "from the left". Environments and backends are siblings, blind to each other and to the store: both
# are set up from the config, and an environment plays again what the caller hands it. Status reads the scheduler it
# shows, while reports read the run directory alone and so import no room: the caller hands them its rows.
MAY_IMPORT = {
    "nano": set[str](),
    "config": set(),
    "plan": {"config"},
    "store": {"config", "plan"},
    "environments": {"config"},
    "backends": {"config", "nano"},
    "scheduler": {"config", "plan", "store", "environments", "backends"},
    "fleet": {"config", "store", "backends", "scheduler"},
    "metrics": {"environments"},
    "status": {"fleet", "scheduler"},
    "reports": {"store"},
    "views": {"config", "store", "environments", "metrics", "reports"},
    "figures": {"config", "store", "environments", "metrics", "reports", "views"},
    "data": {"store", "environments", "reports"},
    "runs": {
        *("config", "plan", "store", "environments", "backends", "fleet", "metrics", "scheduler", "status", "reports"),
        *("views", "figures", "data"),
    },
    "planning": {
        *("config", "plan", "store", "environments", "backends", "scheduler", "fleet", "data", "runs"),
    },
    "viewer": {"config", "store", "environments", "reports", "views", "data", "runs"},
    "api": {"config", "plan", "store", "scheduler", "status", "runs"},
    "executors": {"plan", "store", "fleet", "runs"},
    "testing": {"config", "plan", "environments", "backends"},
    "cli": {
        *("config", "plan", "store", "backends", "fleet", "status", "reports", "views", "data", "runs", "viewer"),
        *("executors", "planning", "testing"),
    },
    "serve": {"nano"},
    "__main__": {"cli"},
}

PLACES: dict[str, set[str]] = {
    # The program of each rank takes the options of `mac-serve`, which imports the island in its turn.
    "import from the right": {"nano/serve_ranks.py: serve"},
    "hold what is for tests": set(),
    "say nothing of themselves": set(),
    # Nano imports nothing of the package but itself, not even the ground floor; its backend imports it too.
    "visit the island": {"serve.py"},
    # Time is passed in, so that tests can simulate it.
    "read the time": {"clock.py"},
    # `http.errors` keeps the original for verdicts beside the quotation; the parser of `vllm` has no key.
    "quote a server": {"backends/http/errors.py", "backends/redaction.py", "backends/vllm/backend.py"},
    "open files": {
        # The only file that writes, so that a test can make it fail.
        "store/disk.py",
        # Opens the files that are read by name, without waiting for what is no file.
        "files.py",
        # Tools that write the schema of experiment files and the types of the pages; they touch no run.
        *("config/schema.py", "views/typescript.py"),
        # Write or hold the log of an engine's processes, and what starts them, in a directory of their own; no run's.
        *("backends/vllm/child.py", "backends/vllm/process_logs.py", "fleet/child.py"),
        # A model's directory, compiled kernels, its own process; else nano leaves disks to libraries.
        *("nano/checkpoint.py", "nano/cpu/vectors.py", "nano/grammar_trial.py", "nano/tokenizer.py"),
        # What the system says of processes that it has started.
        "nano/parallel/workers.py",
        # Opens nothing but /dev/null, in the place of a stream that is closed or that nobody takes.
        "cli/process.py",
        # Reads transcripts without holding up the loop that serves pages.
        "viewer/search.py",
    },
    # Puts a conversation's own state into the generators that all share while it calls another library, and back.
    "draw from the generator that all share": {
        f"environments/adapters/chance.py: random.{name}" for name in ("Random", "getstate", "setstate")
    },
    "draw without a seed": set(),
    "catch what is not ours": {
        # The one tells of a bug and ends the process, the other brings what a call on a thread raised to who awaits it.
        *("cli/process.py: BaseException", "threads.py: BaseException"),
        # The text and the attributes of an exception may be anyone's code.
        "errors.py: BaseException",
        # The island hands what its one thread, or another of its processes, meets to whoever asked; and its library
        # raises nothing more particular.
        *("nano/async_engine.py: Exception", "nano/parallel/worker.py: Exception", "nano/tokenizer.py: Exception"),
        *("nano/parallel/workers.py: Exception", "nano/weight_transfer.py: Exception"),
    },
    # The redactor replaces exceptions before they get to the boundary: their text may contain a key.
    "ask for any exception": {"backends/redaction.py"},
    # Only the command line ends the process.
    "end the process": {"cli/process.py"},
    # A second signal; and a worker is a process of its own, and has nothing to give back.
    "leave at once": {"cli/process.py", "nano/parallel/worker.py"},
    "print": {"cli/process.py"},
}
"""Who does what not every module may."""

USERS = {
    "aiohttp": {"http_library"},
    "altair": {"figures"},
    "anthropic": {"backends"},
    "click": {"cli", "nano", "serve"},
    "filelock": {"store"},
    "fsspec": {"store"},
    "httpx": {"backends"},
    "jinja2": {"environments", "executors", "figures", "nano"},
    "json_repair": {"environments"},
    "msgspec": {
        *("backends", "compared", "data", "environments", "flat", "measures", "paired", "reports", "results"),
        *("runs", "scheduler", "store", "structs", "types", "view_model", "viewer", "views"),
    },
    "ollama": {"backends"},
    "psutil": {"store"},
    "pydantic": {"backends", "config", "environments", "fleet", "latency", "nano", "registry", "section", "spec"},
    "pytest": {"testing"},
    "rapidfuzz": {"environments"},
    "ray": {"executors"},
    "rich": {"status", "reports"},
    "scipy": {"compared", "figures", "ratings"},
    "torch": {"nano"},
    "tqdm": {"status"},
    "vl_convert": {"figures"},
    "yaml": {"config", "store"},
}
"""The rooms that import a library."""


class Call(NamedTuple):
    """What a module calls."""

    name: str
    """`os.path.join`, or empty for what is no name."""
    method: str
    """`join` for any expression that ends so."""
    arguments: tuple[str, ...]
    """Names, texts and numbers as they stand; other expressions are empty, but for unions of names."""


class Module(NamedTuple):
    """What the tests ask of the source of a module. Its tree is large, and is not kept."""

    name: str
    is_described: bool
    imports: frozenset[str]
    """What it imports when it runs. An import for the type checker alone makes it depend on nothing."""
    plain: frozenset[str]
    """Modules imported by their own name; a parameter called `random` is no module."""
    calls: tuple[Call, ...]
    caught: frozenset[str]
    """The broad exceptions whose handlers do not raise them again: there a bug of ours could end."""

    @property
    def room(self) -> str:
        return self.name.split("/")[0].removesuffix(".py")

    @property
    def rooms(self) -> set[str]:
        """The rooms that it imports."""
        inside = [name.split(".")[1] for name in self.imports if name.startswith("mac_runner.")]
        return {"__init__" if part == "__version__" else part for part in inside}


_OPERATORS = (ast.operator, ast.cmpop, ast.unaryop, ast.boolop)
_LEAVES = (*_OPERATORS, ast.expr_context, ast.Name, ast.Constant, ast.alias, ast.arg)
"""What holds no call: passing over it saves half of the time."""


def _read(path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports, plain, calls, caught = set[str](), set[str](), list[Call](), set[str]()
    nodes: list[ast.AST] = [tree]
    while nodes:
        match node := nodes.pop():
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                nodes += node.orelse
                continue
            case ast.Import(names=names):
                imports |= {alias.name for alias in names}
                plain |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                imports |= {f"{module}.{alias.name}" for alias in names}
            case ast.Call(func=function, args=arguments):
                method = function.attr if isinstance(function, ast.Attribute) else ""
                calls.append(Call(_dotted(function), method, tuple(map(_plain, arguments))))
            case ast.ExceptHandler() if _catches_too_much(node):
                caught.add(ast.unparse(node.type) if node.type else "everything")
        for field in node._fields:
            value = getattr(node, field)
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, ast.AST) and not isinstance(one, _LEAVES):
                    nodes.append(one)
    name = path.relative_to(PACKAGE).as_posix()
    described = bool(ast.get_docstring(tree))
    return Module(name, described, frozenset(imports), frozenset(plain), tuple(calls), frozenset(caught))


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr) if left := _dotted(value):
            return f"{left}.{attr}"
        case _:
            return ""


def _plain(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=value):
            return repr(value)
        case ast.BinOp(op=ast.BitOr()):
            return ast.unparse(node)
        case _:
            return ""


def _catches_too_much(handler: ast.ExceptHandler) -> bool:
    """Whether a bug of ours could end here. One that is raised again, as every path of a cleanup does, goes on."""
    caught = "" if handler.type is None else ast.unparse(handler.type)
    is_broad = handler.type is None or any(name in {"Exception", "BaseException"} for name in caught.split(" | "))
    ends_in_raise = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return is_broad and not ends_in_raise


TIME = {
    *("time.time", "time.monotonic", "time.perf_counter", "time.time_ns", "time.monotonic_ns", "time.sleep"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "asyncio.sleep"),
}
FILES = {"open", "os.open", "os.link", "os.replace", "os.rename", "os.unlink", "os.fsync"}
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "touch"}
UNSEEDED = {"Random", "random.Random"}


def _opens(call: Call) -> bool:
    """`.open` is also what an environment does with a task: a file is opened with its mode."""
    has_text = any(text[:1] in ("'", '"') for text in call.arguments if text)
    return call.name in FILES or call.method in METHODS or (call.method == "open" and has_text)


def _asks_for_any_exception(call: Call) -> bool:
    return call.name == "isinstance" and not {"Exception", "BaseException"}.isdisjoint(call.arguments[1].split(" | "))


def _privileges(module: Module) -> Iterator[tuple[str, str]]:
    """What a module does that not every module may, by the words of PLACES."""
    allowed = {module.room} if module.room == "nano" else {module.room, *GROUND, *MAY_IMPORT.get(module.room, ())}
    for target in module.rooms - allowed:
        yield "import from the right", f"{module.name}: {target}"
    for target in module.imports:
        if ".testing." in target and not target.startswith("mac_runner.testing."):
            yield "hold what is for tests", f"{module.name}: {target}"
    if not module.is_described:
        yield "say nothing of themselves", module.name
    if "nano" in module.rooms and not module.name.startswith(("nano/", "backends/nano/")):
        yield "visit the island", module.name
    for caught in module.caught:
        yield "catch what is not ours", f"{module.name}: {caught}"
    for call in module.calls:
        if "random" in module.plain and call.name.startswith("random."):
            yield "draw from the generator that all share", f"{module.name}: {call.name}"
        for words, does in {
            # A sleep of nothing is only a turn for others.
            "read the time": call.name in TIME and call.arguments != ("0",),
            "quote a server": call.name in {"clipped", "on_one_line"} and module.room in ("backends", "fleet"),
            "open files": _opens(call),
            "draw without a seed": call.name.endswith("SystemRandom") or (call.name in UNSEEDED and not call.arguments),
            "ask for any exception": _asks_for_any_exception(call),
            "end the process": call.name in {"sys.exit", "exit", "quit"},
            "leave at once": call.name == "os._exit",
            "print": call.name == "print",
        }.items():
            if does:
                yield words, module.name


def test_every_room_is_known_and_imports_come_from_the_left() -> None:
    parts = (path.relative_to(PACKAGE).parts for path in PACKAGE.rglob("*.py"))
    assert {first.removesuffix(".py") for first, *_ in parts} == {*MAY_IMPORT, *GROUND}
    rooms = list(MAY_IMPORT)
    for room, others in MAY_IMPORT.items():
        assert all(rooms.index(other) < rooms.index(room) for other in others)


@pytest.mark.parametrize("room", [*MAY_IMPORT, *GROUND])
def test_room_imports_and_does_what_it_may_and_nothing_else(room: str) -> None:
    """Room by room, since reading the source of all of them takes seconds."""
    found, libraries = {words: set[str]() for words in PLACES}, set[str]()
    for module in map(_read, sorted([*PACKAGE.glob(f"{room}.py"), *(PACKAGE / room).rglob("*.py")])):
        libraries |= {name.split(".")[0] for name in module.imports} & USERS.keys()
        for words, place in _privileges(module):
            found[words].add(place)

    assert found == {
        words: {place for place in places if place.split(":")[0].split("/")[0].removesuffix(".py") == room}
        for words, places in PLACES.items()
    }
    assert libraries == {name for name, rooms in USERS.items() if room in rooms}


def test_files_import_one_another_in_no_circle() -> None:
    """Imports for the type checker alone count too: who reads the one file needs the other."""
    assert read_house().circles == []


def test_lists_for_tests_name_nothing_that_no_test_takes() -> None:
    taken = {
        (room, name)
        for path in Path(__file__).parent.rglob("*.py")
        for room, names in re.findall(r"from mac_runner\.([\w.]+)\.testing import (\([^)]*\)|.*)", path.read_text())
        for name in re.findall(r"\w+", names)
    }
    for path in PACKAGE.rglob("*/testing.py"):
        room = ".".join(path.parent.relative_to(PACKAGE).parts)
        listed = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
        names = {each.asname or each.name for node in listed if node.module != "__future__" for each in node.names}
        assert names <= {name for of, name in taken if of == room}, room
