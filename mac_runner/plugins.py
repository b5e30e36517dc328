"""Code that a user names in an experiment file, found and imported.

A name is that of an entry point, `package.module:Name`, or `./file.py:name` relative to the experiment file. What is
found comes with a digest of the source it was made from, so that a run can say under which code it was played.

A file is imported under a module name of its own, from the bytes that are digested. While it is imported, its folder
can be imported from; the modules that it took from there belong to it alone, so two folders never mix. An edited file
is imported again.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import (
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    entry_points,
    packages_distributions,
    version,
)
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import RLock
from types import CodeType, FunctionType, ModuleType
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from mac_runner.errors import ConfigError, boundary, said_by
from mac_runner.files import read_regular
from mac_runner.printable import printable
from mac_runner.problems import suggestion
from mac_runner.steps import StepLimit

PluginKind: TypeAlias = Literal["environments", "backends", "policies", "metrics", "rewards"]
KINDS: Final[tuple[PluginKind, ...]] = ("environments", "backends", "policies", "metrics", "rewards")
SOURCE_BYTES_MAX: Final = 16 << 20
"""The largest source file."""
_PREFIX: Final = "mac_runner_plugin"
_FORMS: Final = "an installed one by its name, package.module:Name, or ./file.py:name relative to the experiment file"

_OWN: Final = f"{Path(__file__).parent}/"

T = TypeVar("T")


class Code(NamedTuple):
    """Where code came from."""

    distribution: str | None
    """The installed package, or None for code that no package brought."""
    version: str | None
    sha256: str
    """Digest of its source files and their names."""
    path: Path
    """Its file, or the folder of its package."""


class Plugin(NamedTuple):
    """The object that a name refers to, and the code that it came from."""

    name: str
    value: object
    code: Code


class Installed(NamedTuple):
    """An entry point of an installed package, which was not imported."""

    kind: PluginKind
    name: str
    target: str
    distribution: str
    version: str


class _Module(NamedTuple):
    """An imported module with the digest of each source file that it was made from, by its name."""

    module: ModuleType
    sources: Mapping[Path, str]
    sha256: str


_LOCK: Final = RLock()
"""Importing changes tables of the whole process."""
_FILES: Final[dict[Path, _Module]] = {}
_PACKAGES: Final[dict[str, str]] = {}
"""The digest of each package when it was first used."""
_LOADED: Final[dict[tuple[PluginKind, str, str], Plugin]] = {}


def find_plugin(kind: PluginKind, name: str, base: Path, *, known: Iterable[str] = ()) -> Plugin:
    """Import the object that `name` refers to; files are relative to `base`. `known` are the names that are built in.

    Raises ConfigError: what is missing or wrong, where, and what to do. Nothing is imported for a name that no package
    and no file has.
    """
    with _LOCK:
        if ":" not in name:
            plugin = _by_entry_point(kind, name, known)
        elif is_file(name):
            plugin = _by_file(name, base)
        else:
            plugin = _by_module(name, name, base)
        return _kept(kind, plugin)


def loaded_plugin(kind: PluginKind, name: str, sha256: str) -> Plugin | None:
    """The plug-in if this process has imported that code under that name."""
    return _LOADED.get((kind, name, sha256))


def is_file(name: str) -> bool:
    """Whether a name means a file."""
    return name.rpartition(":")[0].endswith(".py")


def installed_plugins(kind: PluginKind) -> Iterator[Installed]:
    """The entry points of installed packages. Imports none of them."""
    for point in sorted(_points(_group(kind), _places())):
        distribution = point.dist
        yield Installed(
            kind,
            point.name,
            point.value,
            "" if distribution is None else distribution.name,
            "" if distribution is None else distribution.version,
        )


def named_version(distribution: str) -> str:
    """The version of an installed package. Raises ConfigError where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        text = f"the package {distribution} is not installed; install it, or mac_runner with the extra of that name"
        raise ConfigError(text) from None


def recorded_plugin(kind: PluginKind, name: str, path: Path) -> Plugin:
    """Import what a run recorded under `name`; of a file, its `path`. Raises ConfigError as `find_plugin` does."""
    if not is_file(name):
        return find_plugin(kind, name, Path())
    with _LOCK:
        plugin = _by_file(f"{path}:{name.rpartition(':')[2]}", Path())._replace(name=name)
        return _kept(kind, plugin)


def _kept(kind: PluginKind, plugin: Plugin) -> Plugin:
    """The plug-in as it was first imported under its name; the same code in another folder is the same plug-in."""
    first = _LOADED.setdefault((kind, plugin.name, plugin.code.sha256), plugin)
    return first._replace(code=plugin.code)


def _group(kind: PluginKind) -> str:
    return f"mac_runner.{kind}"


def _by_entry_point(kind: PluginKind, name: str, known: Iterable[str]) -> Plugin:
    points: dict[tuple[str, str], EntryPoint] = {}
    offered = _points(_group(kind), _places())
    for point in offered.select(name=name):
        points[("" if point.dist is None else point.dist.name, point.value)] = point
    if not points and name.endswith(".py"):
        path = name if "/" in name else f"./{name}"
        raise ConfigError(f"{name!r} names no object; a file takes the name of the object in it: {path}:NAME")
    if not points:
        others = {*known, *offered.names}
        raise ConfigError(f"there is no {name!r} here{suggestion(name, others)}; or write {_FORMS}")
    if len(points) > 1:
        both = " and ".join(f"{owner or 'no package'} ({value})" for owner, value in sorted(points))
        raise ConfigError(
            f"{name!r} is offered by {both}; write the one you mean as package.module:Name, or remove the other"
        )
    (point,) = points.values()
    target = point.value if ":" in point.value else f"{point.value}:"
    return _by_module(name, target.partition("[")[0].strip(), Path(), point)


def _by_module(name: str, target: str, base: Path, point: EntryPoint | None = None) -> Plugin:
    dotted, _, attribute = target.rpartition(":")
    if not all(part.isidentifier() for part in dotted.split(".")) or not attribute:
        raise ConfigError(f"{name!r} names nothing that can be imported; write {_FORMS}")
    module = _imported(name, lambda: import_module(dotted), base, dotted)
    top, files = _package_files(module)
    sha256 = _digest({path.relative_to(top).as_posix(): _source_sha256(name, path) for path in files})
    if _PACKAGES.setdefault(module.__name__, sha256) != sha256:
        raise ConfigError(
            f"{name}: the code in {top} has changed since this process imported it; start the process again "
            "(in a notebook: restart the kernel)"
        )
    distribution, found_version = _distribution_of(dotted, point)
    code = Code(distribution, found_version, sha256, Path(module.__file__ or top))
    return Plugin(name, _attribute(name, module, attribute), code)


def _package_files(module: ModuleType) -> tuple[Path, list[Path]]:
    """The folder that the top-level package of a module lies in, and its source files.

    A folder without `__init__.py` may be shared by many packages: there the first package below it counts.
    """
    parts = module.__name__.split(".")
    for count in range(1, len(parts) + 1):
        package = sys.modules[".".join(parts[:count])]
        if package.__file__ is None:
            continue
        file = Path(package.__file__)
        if file.name != "__init__.py":
            return file.parent, [file]
        return file.parent.parent, sorted(file.parent.rglob("*.py"))
    raise ConfigError(f"{module.__name__} is a folder without code; name a module in it")


def _distribution_of(dotted: str, point: EntryPoint | None) -> tuple[str | None, str | None]:
    if point is not None and point.dist is not None:
        return point.dist.name, point.dist.version
    owners = sorted(set(_owners(_places()).get(dotted.partition(".")[0], ())))
    return (owners[0], version(owners[0])) if len(owners) == 1 else (None, None)


_Places: TypeAlias = tuple[tuple[str, int | None], ...]


def _places() -> _Places:
    """Where packages are looked for, and when one was last installed or removed there."""
    return tuple((str(place), _changed_ns(place)) for place in (Path(entry).absolute() for entry in sys.path))


def _changed_ns(place: Path) -> int | None:
    try:
        return place.stat().st_mtime_ns
    except OSError:
        return None


# Reading what all packages say of themselves takes tens of milliseconds, and each experiment file asks for it.
@lru_cache(maxsize=16)
def _points(group: str, _places: _Places) -> EntryPoints:
    return entry_points(group=group)


@lru_cache(maxsize=4)
def _owners(_places: _Places) -> Mapping[str, Sequence[str]]:
    """By the name of a module, the packages that it belongs to."""
    return packages_distributions()


def _by_file(name: str, base: Path) -> Plugin:
    file, _, attribute = name.rpartition(":")
    path = (base / Path(file).expanduser()).resolve()
    if not attribute:
        raise ConfigError(f"{name!r} names no object in the file; write {file}:NAME")
    made = _FILES.get(path)
    if made is None or any(_sha256_now(source) != sha256 for source, sha256 in made.sources.items()):
        made = _FILES[path] = _load_file(name, path)
    return Plugin(name, _attribute(name, made.module, attribute), Code(None, None, made.sha256, path))


def _load_file(name: str, path: Path) -> _Module:
    try:
        source = read_regular(path, SOURCE_BYTES_MAX + 1)
    except OSError as fault:
        raise ConfigError(
            f"{name}: {path} cannot be read: {fault.strerror or fault}; name a file that exists"
        ) from None
    sources: dict[Path, str] = {}
    unique = _unique_name(path, source)
    loader = _Source(unique, path, sources)
    spec = spec_from_file_location(unique, path, loader=loader)
    assert spec is not None, "a loader was given"
    module = module_from_spec(spec)

    def run() -> ModuleType:
        sys.modules[unique] = module
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[unique]
            raise
        return module

    with _folder_first(path.parent, sources):
        _imported(name, run, path.parent, "")
    return _Module(module, sources, _digest({_relative(one, path.parent): sha256 for one, sha256 in sources.items()}))


def _unique_name(path: Path, source: bytes) -> str:
    """A module name that no other code has: another file, an earlier edition, another module beside it."""
    stem = "".join(char if char.isalnum() else "_" for char in path.stem)
    digest = hashlib.sha256(f"{path}\n".encode("utf-8", "surrogateescape") + source).hexdigest()[:12]
    name = f"{_PREFIX}_{stem}_{digest}"
    count = 1
    while name in sys.modules:
        count += 1
        name = f"{_PREFIX}_{stem}_{digest}_{count}"
    return name


class _Source(SourceFileLoader):
    """Loads a module from its source and notes the digest of the bytes; neither reads nor writes byte code."""

    def __init__(self, fullname: str, path: Path, sources: dict[Path, str]) -> None:
        super().__init__(fullname, str(path))
        self._sources = sources

    def get_code(self, fullname: str) -> CodeType:
        """The code of the bytes that were digested."""
        path = Path(self.path)
        data = read_regular(path, SOURCE_BYTES_MAX)
        self._sources[path] = hashlib.sha256(data).hexdigest()
        code: CodeType = self.source_to_code(data, self.path)
        return code


class _Folder:
    """Finds modules in one folder before any others; the standard library and mac_runner come first."""

    def __init__(self, folder: Path, sources: dict[Path, str]) -> None:
        self._folder = folder
        self._sources = sources
        self.found: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module of the folder, or of a package that was found there."""
        top = fullname.partition(".")[0]
        if path is None:
            if _is_kept(top):
                return None
            path = [str(self._folder)]
        elif top not in self.found:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or spec.loader is None:
            return None
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Source(fullname, Path(spec.origin), self._sources)
        self.found.add(top)
        return spec


def _is_kept(top: str) -> bool:
    return top == "mac_runner" or top in sys.stdlib_module_names


@contextmanager
def _folder_first(folder: Path, sources: dict[Path, str]) -> Iterator[None]:
    """Have imports look into a folder first; afterwards the process has the modules that it had before."""
    finder = _Folder(folder, sources)
    beside = {path.stem if path.suffix == ".py" else path.name for path in _listed(folder)}
    before = {name: sys.modules[name] for name in [*sys.modules] if _top(name) in beside and not _is_kept(_top(name))}
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
        _complete(sys.modules[name] for name in [*sys.modules] if _top(name) in finder.found)
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _top(name) in finder.found]:
            del sys.modules[name]
        sys.modules.update(before)


def _complete(modules: Iterable[ModuleType]) -> None:
    """Have models of pydantic look up the names in their annotations, while their module can still be found."""
    for module in modules:
        own = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        for value in own:
            if vars(value).get("__pydantic_complete__") is False:
                value.model_rebuild(raise_errors=False)  # type: ignore[attr-defined]


def _listed(folder: Path) -> list[Path]:
    """The modules and packages of a folder."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return []


def _top(name: str) -> str:
    return name.partition(".")[0]


def _imported(name: str, run: Callable[[], ModuleType], base: Path, dotted: str) -> ModuleType:
    """What `run` imports. Raises ConfigError for whatever it raises, with the place."""
    recursion_limit = sys.getrecursionlimit()
    try:
        with boundary(ConfigError, name):
            return run()
    except ConfigError as fault:
        cause = fault.__cause__ or fault
        if dotted and isinstance(cause, ModuleNotFoundError) and f"{dotted}.".startswith(f"{cause.name}."):
            raise ConfigError(f"{name}: there is no module {cause.name!r} here; {_hint(dotted, base)}") from None
        if isinstance(cause, SystemExit):
            text = f"{name}: cannot be imported: it ended the process ({place_of(cause)}); put that under"
            raise ConfigError(f'{text} `if __name__ == "__main__":`') from cause
        raise ConfigError(f"{name}: cannot be imported: {place_of(cause)}; mend the code") from cause
    finally:
        StepLimit.put_back(recursion_limit)


def _hint(dotted: str, base: Path) -> str:
    file = f"{dotted.replace('.', '/')}.py"
    if (base / file).is_file():
        return f"for the file beside the experiment write ./{file}:NAME"
    return "install the package that has it, or write ./file.py:name for a file"


def plain_function(plugin: Plugin, arguments: int, shape: str) -> Callable[..., object]:
    """The function that a plug-in is, which takes one argument or two. Raises ConfigError for anything else.

    `shape` says what it should be.
    """
    function = plugin.value
    if not callable(function) or inspect.isclass(function):
        what = f"is {'a class' if inspect.isclass(function) else type(function).__name__}"
    elif inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        what = "is asynchronous or a generator"
    else:
        try:
            inspect.signature(function).bind(*[None] * arguments)
        except TypeError as fault:
            what = f"does not take {('one argument', 'two arguments')[arguments - 1]} ({fault})"
        except ValueError:
            return function  # A function of C, whose arguments cannot be read.
        else:
            return function
    raise ConfigError(f"{plugin.name!r} {what}; {shape}")


def place_of(fault: BaseException, *, has_folder: bool = True) -> str:
    """The line of a plug-in that an exception came from, and what it says.

    What is stored names the file without its folder: it is the same on another machine.
    """
    said = printable(said_by(fault).removesuffix(": "))
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if not _is_machinery(frame.filename)]
    if isinstance(fault, SyntaxError) and fault.filename is not None:
        file, line, said = fault.filename, fault.lineno, f"{type(fault).__name__}: {fault.msg}"
    elif frames:
        file, line = frames[-1].filename, frames[-1].lineno
    else:
        return said
    return f"{file if has_folder else Path(file).name}:{line}: {said}"


def _is_machinery(filename: str) -> bool:
    """Whether a frame is of the runner or of the import system, and not of the code that it called."""
    return filename.startswith(("<frozen", _OWN))


def _attribute(name: str, module: ModuleType, attribute: str) -> object:
    """The object of a module by its name, which may have dots."""
    value: object = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            file = getattr(module, "__file__", None) or module.__name__
            own = _defined_in(module) if value is module else ()
            raise ConfigError(f"{name}: {file} has no {part!r}{suggestion(part, own)}")
        value = getattr(value, part)
    return value


def _defined_in(module: ModuleType) -> list[str]:
    """The public names that a module does not import from elsewhere."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
        if not isinstance(value, type | FunctionType) or value.__module__ == module.__name__
    ]


def _source_sha256(name: str, path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path, SOURCE_BYTES_MAX)).hexdigest()
    except OSError as fault:
        raise ConfigError(f"{name}: {path} cannot be read: {fault.strerror or fault}") from None


def _sha256_now(path: Path) -> str:
    """The digest of a file; empty where it cannot be read."""
    with suppress(OSError):
        return hashlib.sha256(read_regular(path, SOURCE_BYTES_MAX)).hexdigest()
    return ""


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()


def _digest(sources: Mapping[str, str]) -> str:
    """One digest of files by their names: the same wherever the folder lies."""
    lines = "".join(f"{sha256} {name}\n" for name, sha256 in sorted(sources.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()
