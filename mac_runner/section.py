"""A section of an experiment file: the base of its models, and the field types that they share.

Every field has one of three classes, beside its type (`Annotated[int, IDENTITY]`). A changed IDENTITY field changes
what the results mean, so a run directory cannot go on with it. A RUNTIME field decides only how fast and where the same
results are made. A RECORDED field is filled in with what this version has, such as the roles of a game: results depend
on it, and a run that goes on keeps the value that it began with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self, TypeAlias, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PydanticUserError,
    RootModel,
    Strict,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from mac_runner.errors import ConfigError
from mac_runner.files import read_material

KeyPath: TypeAlias = tuple[str | int, ...]
"""The place of a value in the file: keys and list indices from the top."""

T = TypeVar("T")
Listed: TypeAlias = Annotated[tuple[T, ...], Strict(False)]
"""A YAML list, kept as a tuple: the container is converted, its elements are as strict as everything else."""

ADDRESS: Final = "address"
"""The type of pydantic's error for an impossible server address."""
FILE: Final = "file"
"""The type of pydantic's error for a file that cannot be used; its context has the `flaw`, in words for the user."""
FILE_PATH: Final = "file_path"
"""The type of pydantic's error for a value that names no file."""
LIST_OR_MAPPING: Final = "list_or_mapping"
"""The type of pydantic's error for a value of a section that may be a list too, and is neither."""


def flaw_of(url: str) -> str | None:
    """The flaw of `url`, which begins with http:// or https://, as a base URL; None without one."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if host is not None and ":" not in host:
            host.encode("idna")  # What is looked up; a label has 1 to 63 characters.
    except ValueError as fault:
        return str(fault)
    if not url.isprintable() or any(char.isspace() for char in url) or "\\" in url:
        return "it holds characters that no address has"
    if not host:
        return "it names no host"
    if port == 0:
        return "there is no port 0"
    return "a base URL ends with its path" if "?" in url or "#" in url else None


def _sound(url: str) -> str:
    if (flaw := flaw_of(url)) is not None:
        raise PydanticCustomError(ADDRESS, "{flaw}", {"flaw": flaw})
    return url


NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
URL_PATTERN: Final = r"^https?://[^\s@]+$"
DIGEST_PATTERN: Final = r"^[0-9a-f]{64}$"
VARIABLE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
PATTERN_WORDS: Final[Mapping[str, str]] = {
    NAME_PATTERN: "1 to 80 letters, digits, '.', '_' or '-', beginning with a letter or a digit",
    URL_PATTERN: "a URL that begins with http:// or https:// and holds no password",
    DIGEST_PATTERN: "a SHA-256 in 64 small hexadecimal digits",
    VARIABLE_PATTERN: "the name of an environment variable, never the key itself",
}
Name: TypeAlias = Annotated[str, Field(pattern=NAME_PATTERN)]
TEMPLATE_CHARS_MAX: Final = 65_536
"""The longest template of an experiment."""
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Url: TypeAlias = Annotated[str, Field(pattern=URL_PATTERN), AfterValidator(_sound)]
Urls: TypeAlias = Annotated[
    Listed[Url],
    Field(min_length=1, max_length=1000),
    BeforeValidator(lambda urls: (urls,) if isinstance(urls, str) else urls, json_schema_input_type=Url | Listed[Url]),
]
"""The servers of a model, all alike: one URL, or a list of them."""
VariableName: TypeAlias = Annotated[str, Field(pattern=VARIABLE_PATTERN)]


class Bearing(StrEnum):
    """How a field bears on the identity of a run."""

    IDENTITY = "identity"
    RUNTIME = "runtime"
    RECORDED = "recorded"


IDENTITY: Final[Literal[Bearing.IDENTITY]] = Bearing.IDENTITY
RUNTIME: Final[Literal[Bearing.RUNTIME]] = Bearing.RUNTIME
RECORDED: Final[Literal[Bearing.RECORDED]] = Bearing.RECORDED


class Section(BaseModel):
    """A mapping of the file: frozen, without unknown keys, and without conversion of types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )


Settings: TypeAlias = BaseModel
"""A section, or a plain model of pydantic's as an environment of somebody's own may have."""


class NoSettings(Section):
    """The settings of code that has none."""


class File(Section):
    """A file that settings name. What is in it is part of the identity of a run; where it is, is not.

    An experiment file has its path alone, relative to the experiment file. It is read when that is loaded, and a run
    records where it was and its digest.
    """

    path: Annotated[Path, RUNTIME, Strict(False)]
    """Where it is, in full."""
    sha256: Annotated[str, IDENTITY, Field(pattern=DIGEST_PATTERN)]
    """The digest of what was in it when the experiment was loaded."""

    @classmethod
    def at(cls, path: Path | str) -> Self:
        """The file at a path. Raises ConfigError when it cannot be read or is too large."""
        data = read_material(Path(path))
        return cls(path=Path(path).resolve(), sha256=hashlib.sha256(data).hexdigest())

    def content(self) -> bytes:
        """What is in it. Raises ConfigError where that is not what was in it when the experiment was loaded."""
        data = read_material(self.path)
        if (found := hashlib.sha256(data).hexdigest()) != self.sha256:
            text = f"sha256 {self.sha256} when the experiment was loaded, {found} now"
            raise ConfigError(f"{self.path}: its content changed: {text}; put the file back")
        return data

    def text(self) -> str:
        """What is in it, as UTF-8. Raises as `content` does, and ConfigError for what is none."""
        try:
            return self.content().decode("utf-8")
        except UnicodeDecodeError as fault:
            text = f"not UTF-8: {fault.reason} at byte {fault.start}"
            raise ConfigError(f"{self.path}: {text}; convert it, or have the code read `content()`") from None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> object:
        """Read what an experiment file names: the context is an `Opener` while one is loaded."""
        if isinstance(value, cls) or (isinstance(value, dict) and not isinstance(info.context, Opener)):
            return value
        given = value if isinstance(value, dict) else {"path": value}
        name, digest = given.get("path"), given.get("sha256")
        if not isinstance(name, str):
            raise PydanticCustomError(FILE_PATH, "the path of a file")
        if not isinstance(info.context, Opener):
            raise _unusable(f"found {name!r}; a file is read with the experiment file that names it, and not here")
        try:
            file = info.context.opened(name)
        except ConfigError as fault:
            raise _unusable(str(fault)) from None
        if digest not in (None, file.sha256):
            raise _unusable(f"{file.path}: its sha256 is {file.sha256}, not {digest!r}; put back the file that has it")
        return {**given, "path": str(file.path), "sha256": file.sha256}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """As it is written in an experiment file."""
        return {"type": "string", "description": "The path of a file, relative to this one."}


class Opener:
    """The context of validation while an experiment file is loaded: finds and digests the files that it names.

    `cache` is shared by the combinations of a grid, for which a file is read once.
    """

    def __init__(self, base: Path, cache: dict[str, object]) -> None:
        self._base = base
        self._cache = cache

    def opened(self, name: str) -> File:
        """The file of this name. Raises ConfigError when it cannot be read or is too large."""
        key = f"file {name}"
        if not isinstance(file := self._cache.get(key), File):
            file = self._cache[key] = File.at(self._base / name)
        return file


def _unusable(flaw: str) -> PydanticCustomError:
    return PydanticCustomError(FILE, "{flaw}", {"flaw": flaw})


class Place(NamedTuple):
    """What is at a path: a section, a leaf field (or something inside it), or neither (an unknown key)."""

    section: type[Settings] | None
    field: FieldInfo | None


def section_of(annotation: object) -> type[Settings] | None:
    """The section a field holds, whether one, an optional one, a list or a mapping of them; None for a leaf."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_of(part)) is not None), None)


def is_collection(annotation: object) -> bool:
    """Whether a field holds many sections, each under its name or index."""
    kind = get_origin(annotation)
    if isinstance(kind, type) and issubclass(kind, Collection):
        return True
    return any(is_collection(part) for part in get_args(annotation))


def place_at(root: type[Settings], path: KeyPath) -> Place:
    """What is at `path` below `root`."""
    section: type[Settings] | None = root
    parts = iter(path)
    for part in parts:
        field = None if section is None else section.model_fields.get(str(part))
        if field is None:
            return Place(None, None)
        section = section_of(field.annotation)
        if section is None:
            return Place(None, field)
        if is_collection(field.annotation) and next(parts, None) is None:
            return Place(None, None)
    return Place(section, None)


def bearing_of(root: type[Settings], path: KeyPath) -> Bearing:
    """The class of the field at `path`. A section is runtime if all its fields are; an unknown key is identity."""
    place = place_at(root, path)
    if place.section is not None and place.section is not root:
        fields = [field for _, field in leaf_fields(place.section)]
        return RUNTIME if fields and all(_bearing(field) is RUNTIME for field in fields) else IDENTITY
    return IDENTITY if place.field is None else _bearing(place.field)


def _bearing(field: FieldInfo) -> Bearing:
    return next((mark for mark in field.metadata if isinstance(mark, Bearing)), IDENTITY)


def leaf_fields(root: type[Settings], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every leaf field below `root`; `*` replaces the name or index of an entry of a collection."""
    for name, field in root.model_fields.items():
        section = section_of(field.annotation)
        if section is None:
            yield (*prefix, name), field
        else:
            star = ("*",) if is_collection(field.annotation) else ()
            yield from leaf_fields(section, (*prefix, name, *star))


def runtime_keys(root: type[Settings], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """What is marked RUNTIME below `root`, as whole sections or as fields; `*` is the name or index of any entry."""
    for name, field in root.model_fields.items():
        if _bearing(field) is RUNTIME:
            yield (*prefix, name)
        else:
            for stars, section in sorted(_sections(field.annotation), key=itemgetter(0)):
                yield from runtime_keys(section, (*prefix, name, *stars))


def _sections(annotation: object) -> set[tuple[tuple[str, ...], type[Settings]]]:
    """The sections of a field, each with a `*` for every collection that it is in."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return {((), annotation)}
    kind = get_origin(annotation)
    star = ("*",) if isinstance(kind, type) and issubclass(kind, Collection) else ()
    return {((*star, *stars), section) for part in get_args(annotation) for stars, section in _sections(part)}


def flaw_of_model(model: type[Settings]) -> str:
    """Why a model of somebody's own cannot be the settings of an experiment; empty where it can."""
    try:
        model.model_rebuild()
    except (NameError, PydanticUserError) as fault:
        return f"{model.__name__} is not complete: {str(fault).splitlines()[0]}"
    return _flaw_of_fields(model, ())


def _flaw_of_fields(model: type[Settings], above: tuple[type[Settings], ...]) -> str:
    if issubclass(model, RootModel):
        return f"{model.__name__} is a RootModel, which has no keys; write a BaseModel with fields"
    if model in above:
        return f"{model.__name__} contains itself; write a model whose depth is fixed"
    for name, field in model.model_fields.items():
        if _holds_set(field.annotation):
            return f"{model.__name__}.{name} is a set, whose order differs between processes; write list or tuple"
        section = section_of(field.annotation)
        if section is not None and (flaw := _flaw_of_fields(section, (*above, model))):
            return flaw
    return ""


def _holds_set(annotation: object) -> bool:
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and issubclass(kind, AbstractSet):
        return True
    return kind is not Literal and any(_holds_set(part) for part in get_args(annotation))
