"""The rooms and what each may do, read off the source: imports from the left only, and one place per privilege."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mac_runner"

GROUND = (
    "errors",
    "tokens",
    "types",
    "clock",
    "descriptors",
    "files",
    "printable",
    "section",
    "problems",
    "latency",
    "calibration",
    "intervals",
    "bottleneck",
    "comparisons",
    "paired",
    "flat",
    "results",
    "view_model",
    "structs",
    "rewards",
    "weights",
    "checkpoints",
    "threads",
    "plugins",
    "registry",
    "__init__",
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
    "fleet": {"config", "store", "backends"},
    "metrics": {"environments"},
    "scheduler": {"config", "plan", "store", "environments", "backends"},
    "simulation": {"config", "plan", "store", "environments", "backends", "scheduler"},
    "status": {"fleet", "scheduler"},
    "reports": {"store"},
    "views": {"config", "store", "environments", "metrics", "reports"},
    "figures": {"config", "store", "environments", "metrics", "reports", "views"},
    "data": {"store", "environments", "reports"},
    "runs": {
        *("config", "plan", "store", "environments", "backends", "fleet", "metrics", "scheduler", "status", "reports"),
        *("simulation", "views", "figures", "data"),
    },
    "viewer": {"config", "store", "environments", "reports", "views", "data", "runs"},
    "api": {"config", "plan", "store", "scheduler", "status", "runs"},
    "executors": {"plan", "store", "fleet", "runs"},
    "testing": {"config", "plan", "environments", "backends"},
    "cli": {
        *("config", "plan", "store", "backends", "fleet", "status", "reports", "views", "data", "runs", "viewer"),
        *("executors", "simulation", "testing"),
    },
    "serve": {"nano"},
    "__main__": {"cli"},
}

CLOCK = {"clock.py"}
"""Time is passed in, so that tests can simulate it."""
DISK = {"store/disk.py"}
"""The only file that writes, so that a test can make it fail."""
OPENER = {"files.py"}
"""Opens the files that are read by name, without waiting for what is no file."""
SCHEMA = {"config/schema.py", "views/typescript.py"}
"""Tools that write the schema of experiment files and the types of the pages; they touch no run."""
ENGINES = {"backends/vllm/process_logs.py", "fleet/child.py"}
"""Write the log of an engine's processes, and what starts them, to a directory of their own; they touch no run."""
MODELS = {"nano/checkpoint.py", "nano/cpu/compiler.py", "nano/tokenizer.py"}
"""What lies in a model's directory, and where compiled kernels are kept; else the island leaves disks to libraries."""
SWAPPED = {f"environments/adapters/chance.py: random.{name}" for name in ("Random", "getstate", "setstate")}
"""Puts a conversation's own state into the generators that all share while it calls another library, and back."""
RANKS = {"nano/serve_ranks.py: serve"}
"""The program of each rank takes the options of `mac-serve`, which imports the island in its turn."""
STREAMS = {"cli/process.py"}
"""Opens nothing but /dev/null, in the place of a stream that is closed or that nobody takes."""
SEARCHED = {"viewer/search.py"}
"""Reads transcripts without holding up the loop that serves pages."""
ENDS = {"cli/ending.py", "cli/entry.py"}
"""Only the command line ends the process; leaving at once, on a second signal, is told apart below."""


LIBRARIES = (
    "aiohttp",
    "altair",
    "anthropic",
    "click",
    "filelock",
    "fsspec",
    "httpx",
    "httpx2",
    "jinja2",
    "json_repair",
    "ollama",
    "msgspec",
    "psutil",
    "pydantic",
    "pytest",
    "rapidfuzz",
    "ray",
    "rich",
    "scipy",
    "tqdm",
    "vl_convert",
    "yaml",
)


def test_every_room_is_known() -> None:
    assert {_room(path) for path in _modules()} == {*MAY_IMPORT, *GROUND}


def test_imports_come_from_the_left() -> None:
    rooms = list(MAY_IMPORT)
    for room, others in MAY_IMPORT.items():
        assert all(rooms.index(other) < rooms.index(room) for other in others)


@pytest.mark.parametrize("room", [*MAY_IMPORT, *GROUND])
def test_room_imports_what_it_may(room: str) -> None:
    allowed = {room, *GROUND, *MAY_IMPORT.get(room, set())}
    strays = {
        f"{_name(path)}: {target}"
        for path in _modules()
        if _room(path) == room
        for target in _imported_rooms(path)
        if target not in allowed
    }

    assert strays <= RANKS


def test_nano_is_an_island() -> None:
    """It imports nothing of the package but itself, not even the ground floor; a backend and `mac-serve` import it."""
    inside = {target for path in _modules() if _room(path) == "nano" for target in _imported_rooms(path)}
    torch_users = {_room(path) for path in _modules() if "torch" in _imported_libraries(path)}

    visitors = {_name(path) for path in _modules() if "nano" in _imported_rooms(path) and _room(path) != "nano"}

    assert inside == {"nano", "serve"}
    assert torch_users == {"nano"}
    assert {place for place in visitors if not place.startswith("backends/nano/")} == {"serve.py"}


def test_ground_floor_and_config_need_no_terminal_and_no_lock() -> None:
    users = {
        library: {_room(path) for path in _modules() if library in _imported_libraries(path)} for library in LIBRARIES
    }

    assert users == {
        "aiohttp": {"backends", "fleet", "viewer"},
        "altair": {"figures"},
        "anthropic": {"backends"},
        "click": {"cli", "nano", "serve"},
        "filelock": {"store"},
        "fsspec": {"store"},
        "httpx": {"backends"},
        "httpx2": {"backends"},
        "jinja2": {"environments", "executors", "figures", "nano"},
        "json_repair": {"environments"},
        "msgspec": {
            "backends",
            "environments",
            "figures",
            "flat",
            "reports",
            "results",
            "store",
            "structs",
            "view_model",
            "viewer",
            "views",
        },
        "ollama": {"backends"},
        "psutil": {"store"},
        "pydantic": {"backends", "config", "environments", "fleet", "latency", "nano", "section"},
        "pytest": {"testing"},
        "rapidfuzz": {"environments"},
        "ray": {"executors"},
        "rich": {"status", "reports"},
        "scipy": {"comparisons", "figures", "paired"},
        "tqdm": {"status"},
        "vl_convert": {"figures"},
        "yaml": {"config", "store"},
    }


def test_only_the_clock_reads_the_time() -> None:
    readers = _users_of(
        {"time.time", "time.monotonic", "time.perf_counter", "time.time_ns", "time.monotonic_ns", "time.sleep"}
        | {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "asyncio.sleep"}
    )

    assert readers == CLOCK


def test_only_the_redactor_quotes_a_server_with_a_key() -> None:
    """`http_errors` keeps the original for verdicts beside the quotation; the engines of `vllm` have no key."""
    users = {name for name in _users_of({"clipped"}) if name.startswith("backends/")}

    assert users == {
        "backends/http_errors.py",
        "backends/redaction.py",
        "backends/vllm/arguments.py",
        "backends/vllm/process_logs.py",
    }


def test_only_the_disk_opens_files() -> None:
    openers = _users_of({"open", "os.open", "os.link", "os.replace", "os.rename", "os.unlink", "os.fsync"})
    methods = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "touch"}
    # `.open` is also what an environment does with a task: a file is opened with its mode.
    by_method = {
        _name(path)
        for path in _modules()
        for call in _calls(path)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in methods
        and (call.func.attr != "open" or any(isinstance(argument, ast.Constant) for argument in call.args))
    }

    assert openers | by_method == DISK | OPENER | SCHEMA | ENGINES | MODELS | STREAMS | SEARCHED


def test_nothing_draws_from_the_generator_that_all_share() -> None:
    shared = {
        f"{_name(path)}: {_dotted(call.func)}"
        for path in _modules()
        for call in _calls(path)
        if "random" in _plain_imports(path) and _dotted(call.func).startswith("random.")
    }
    unseeded = {_name(path) for path in _modules() for call in _calls(path) if _is_unseeded(call)}

    assert (shared, unseeded) == (SWAPPED, set())


def test_only_the_boundary_and_the_command_line_catch_what_is_not_ours() -> None:
    catchers = {
        f"{_name(path)}: {ast.unparse(handler.type) if handler.type else 'everything'}"
        for path in _modules()
        for handler in _nodes(path)
        if isinstance(handler, ast.ExceptHandler) and _catches_too_much(handler)
    }

    # The one tells of a bug and ends the process, the other brings what a call on a thread raised to whoever awaits it.
    # The island hands what its one thread, or another of its processes, meets to whoever asked; and its library raises
    # nothing more particular.
    island = {
        "nano/async_engine.py: Exception",
        "nano/parallel/follower.py: Exception",
        "nano/parallel/replica.py: Exception",
        "nano/parallel/replicas.py: Exception",
        "nano/parallel/ranks.py: Exception",
        "nano/tokenizer.py: Exception",
        "nano/weight_transfer.py: Exception",
    }
    assert catchers - island == {"cli/ending.py: Exception", "threads.py: BaseException"}
    # The boundary is a context manager of its own: it is told of exceptions, and asks which are plain Python. The
    # redactor replaces them before they get there: their text may contain a key.
    assert {_name(path) for path in _modules() for call in _calls(path) if _asks_for_any_exception(call)} == {
        "backends/redaction.py",
        "errors.py",
    }


def test_only_the_command_line_ends_the_process() -> None:
    assert _users_of({"sys.exit", "exit", "quit"}) == ENDS
    # The follower is a process of its own, and has nothing to give back.
    assert _users_of({"os._exit"}) == {"cli/process.py", "nano/parallel/follower.py"}


def test_only_the_command_line_prints() -> None:
    assert _users_of({"print"}) <= {"cli/process.py"}


def _asks_for_any_exception(call: ast.Call) -> bool:
    return _dotted(call.func) == "isinstance" and not {"Exception", "BaseException"}.isdisjoint(
        ast.unparse(call.args[1]).split(" | ")
    )


@cache
def _modules() -> tuple[Path, ...]:
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: Path) -> Iterator[str]:
    """What a module imports when it runs. An import for the type checker alone makes it depend on nothing."""
    for_types = {
        node
        for block in _nodes(path)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in _nodes(path):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _imported_rooms(path: Path) -> set[str]:
    inside = [name.split(".")[1] for name in _imports(path) if name.startswith("mac_runner.")]
    return {"__init__" if part == "__version__" else part for part in inside}


def _imported_libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in _imports(path)}


def _plain_imports(path: Path) -> set[str]:
    """Modules imported by their own name; a parameter called `random` is no module."""
    return {alias.name for node in _nodes(path) if isinstance(node, ast.Import) for alias in node.names}


def _calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in _nodes(path) if isinstance(node, ast.Call))


def _dotted(node: ast.expr) -> str:
    """`os.path.join` for the expression of that text; empty for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr) if left := _dotted(value):
            return f"{left}.{attr}"
        case _:
            return ""


def _users_of(names: set[str]) -> set[str]:
    return {_name(path) for path in _modules() for call in _calls(path) if _dotted(call.func) in names}


def _is_unseeded(call: ast.Call) -> bool:
    name = _dotted(call.func)
    return name.endswith("SystemRandom") or (name in {"Random", "random.Random"} and not call.args)


def _catches_too_much(handler: ast.ExceptHandler) -> bool:
    """Whether a bug of ours could end here. One that is raised again, as every path of a cleanup does, goes on."""
    caught = "" if handler.type is None else ast.unparse(handler.type)
    is_broad = handler.type is None or any(name in {"Exception", "BaseException"} for name in caught.split(" | "))
    ends_in_raise = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return is_broad and not ends_in_raise
