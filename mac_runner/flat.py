"""Rows of flat tables out of transcripts: a column names the place of its value, and the rows follow from that.

A place is a path such as `turns[].reply.text`. `[]` stands before what each element of a list has. A path that ends in
`[]` is a list of words, one that ends in `.*` an object without the keys that other columns have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeGuard

import msgspec
from msgspec import inspect

from mac_runner.errors import RunDirectoryError
from mac_runner.types import JsonObject, JsonValue

Kind: TypeAlias = Literal["text", "integer", "number", "truth", "texts", "integers", "numbers", "messages", "json"]
"""The type of a column: one value, a list of them, a list of chat messages, or any value written as JSON."""
Message: TypeAlias = Mapping[str, str]
"""A chat message: its `role` and its `content`."""
Cell: TypeAlias = bool | int | float | str | None
"""What a row of a table has in a column; None where there is nothing."""
Cells: TypeAlias = Cell | Sequence[str] | Sequence[int] | Sequence[float] | Sequence[Message]
"""A cell of a column that may hold a list."""
Row: TypeAlias = Mapping[str, Cells]

NUMBER: Final = "#"
"""In place of a path: the number of the row in its conversation, from 0."""
_INTEGER_MAX: Final = 2**63
_LIST: Final = "[]."
_REST: Final = ".*"


_encode: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_encode_fast: Final = msgspec.json.Encoder().encode


class FlatColumn(NamedTuple):
    """A column of a table: the one type of its cells, what they mean, their unit, and their place in a transcript."""

    kind: Kind
    meaning: str
    unit: str = ""
    source: str = ""
    """A path; NUMBER; or empty for what is derived."""


_KINDS: Final[Mapping[type[inspect.Type], Kind]] = {
    inspect.StrType: "text",
    inspect.EnumType: "text",
    inspect.LiteralType: "text",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "truth",
}


class Described(NamedTuple):
    """A field of a struct, with what the `Meta` of its annotation says of it."""

    key: str
    of: inspect.Type
    """Its type, where it has a value."""
    column: str
    """The name of its column: the title, or else its name in Python."""
    meaning: str
    unit: str


def described(row: type[msgspec.Struct] | inspect.StructType) -> Iterator[Described]:
    """The fields of a struct, in order; the `extra` of a `Meta` has the unit."""
    shape = row if isinstance(row, inspect.StructType) else inspect.type_info(row)
    for field in shape.fields if isinstance(shape, inspect.StructType) else ():
        noted = field.type if isinstance(field.type, inspect.Metadata) else inspect.Metadata(field.type)
        said, of = noted.extra_json_schema or {}, noted.type
        if isinstance(of, inspect.UnionType):
            kinds = [one for one in of.types if not isinstance(one, inspect.NoneType)]
            of = kinds[0] if len(kinds) == 1 else inspect.UnionType(tuple(kinds))
        column, unit = said.get("title", field.name), (noted.extra or {}).get("unit", "")
        yield Described(field.encode_name, of, column, said.get("description", ""), unit)


def columns_of(
    where: str, row: type[msgspec.Struct] | inspect.StructType, *, without: Collection[str] = ()
) -> dict[str, FlatColumn]:
    """The columns of the structs at a place, but for the keys `without`.

    Of a struct in a struct that has no meaning of its own, each field has a column.
    """
    columns: dict[str, FlatColumn] = {}
    for key, of, column, meaning, unit in described(row):
        source = f"{where}.{key}"
        if key in without:
            continue
        if isinstance(of, inspect.StructType) and not meaning:
            columns |= columns_of(source, of)
        elif isinstance(of, inspect.ListType) and type(of.item_type) in (inspect.StrType, inspect.EnumType):
            columns[column] = FlatColumn("texts", meaning, unit, f"{source}[]")
        else:
            columns[column] = FlatColumn(_KINDS.get(type(of), "json"), meaning, unit, source)
    return columns


def cell(kind: Kind, value: JsonValue, where: str) -> Cells:
    """A value as a cell of a column. Raises RunDirectoryError naming `where` for one that does not fit."""
    if value is None:
        return None
    match kind:
        case "json":
            return json_text(value)
        case "text":
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        case "integer" if _is_integer(value):
            return value
        case "number" if isinstance(value, int | float) and not isinstance(value, bool):
            return _as_float(value, where)
        case "truth" if isinstance(value, bool):
            return value
        case "texts" if isinstance(value, list):
            return [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in value]
        case "integers" if isinstance(value, list) and all(map(_is_integer, value)):
            return [one for one in value if isinstance(one, int)]
        case "numbers" if isinstance(value, list):
            return [one for each in value if isinstance(one := cell("number", each, where), float)]
        case _:
            raise RunDirectoryError(f"{where}: {value!r:.60} is not of the type {kind}; check the run with verify")


def json_text(value: JsonValue) -> str:
    """A value as JSON on one line."""
    try:
        return _encode_fast(value).decode("utf-8")
    except (UnicodeEncodeError, OverflowError):
        # Half a surrogate pair, and a number of more than 64 bits, take the slower encoder.
        return _encode(value)


def _written_text(value: msgspec.Raw | str | None) -> str | None:
    """The cell of JSON as the store writes it: only escapes and exponents differ from `json_text`.

    A value that is a cell already stays one.
    """
    if not isinstance(value, msgspec.Raw):
        return value
    text = str(value, "ascii")
    if text == "null":
        return None
    # A byte is found much faster than two.
    is_suspect = "\\" in text or "+" in text or "-" in text
    if is_suspect and ("\\u" in text or "e+" in text or "e-" in text):
        return json_text(json.loads(text))
    return text


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and -_INTEGER_MAX <= value < _INTEGER_MAX


def _as_float(value: float, where: str) -> float:
    try:
        return float(value)
    except OverflowError as fault:
        raise RunDirectoryError(f"{where}: {value!r:.60} is too large for a number") from fault


def value_at(value: JsonValue, path: Sequence[str]) -> JsonValue:
    """What an object has under a path of keys, a number for an entry of a list; None where one is missing."""
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        else:
            return None
    return value


Chain: TypeAlias = tuple[JsonValue, ...]
"""A transcript, and for each list of a path the element that the row is of."""
Getter: TypeAlias = Callable[[Chain, int], Any]


_NOTHING: Final = (NoneType,)
_PLAIN: Final[Mapping[Kind, tuple[type, ...]]] = {
    "text": (str, NoneType),
    "number": (float, NoneType),
    "truth": (bool, NoneType),
}
"""The types of values that are cells as they are."""


class RowMaker:
    """Makes the rows of the elements of one list, such as `turns[]`; of the transcript itself where that is empty.

    `beside` are the places that other tables hold; a column of the rest of an object has nothing of them.
    """

    def __init__(self, where: str, columns: Mapping[str, FlatColumn], *, beside: Iterable[str] = ()) -> None:
        self._lists = [_keys(part) for part in where.removesuffix("[]").split(_LIST)] if where else []
        sources = [column.source for column in columns.values()]
        held = [*sources, *beside]
        self._taken = {one: keys_below(one.removesuffix("*"), held) for one in sources if one.endswith(_REST)}
        self._cells = [
            (name, column.kind, _PLAIN.get(column.kind, _NOTHING), self._getter(column.source))
            for name, column in columns.items()
        ]

    def rows(self, transcript: JsonObject, wanted: frozenset[str] | None = None) -> Iterator[dict[str, Cells]]:
        """The rows of a transcript, with the cells that are wanted, or all."""
        cells = self._cells if wanted is None else [each for each in self._cells if each[0] in wanted]
        for number, chain in enumerate(self.chains(transcript)):
            yield {
                name: value if type(value := get(chain, number)) in plain else cell(kind, value, name)
                for name, kind, plain, get in cells
            }

    def chains(self, transcript: JsonObject) -> Iterable[Chain]:
        """The elements of the list, each with what it lies in."""
        chains: list[Chain] = [(transcript,)]
        for keys in self._lists:
            chains = [(*chain, element) for chain in chains for element in _elements(value_at(chain[-1], keys))]
        return chains

    def _getter(self, source: str) -> Getter:
        if source == NUMBER:
            return lambda _chain, number: number
        if not source:
            return lambda _chain, _number: None
        *lists, last = source.removesuffix("[]").split(_LIST)
        place = len(lists)
        if source.endswith(_REST):
            keys, taken = _keys(last.removesuffix("*").removesuffix(".")), self._taken[source]
            return lambda chain, _number: _rest(value_at(chain[place], keys), taken)
        keys = _keys(last)
        if len(keys) > 1:
            return lambda chain, _number: value_at(chain[place], keys)
        return lambda chain, _number: (
            found.get(last) if isinstance(found := chain[place], dict) else value_at(found, keys)
        )


class JsonColumns:
    """Reads columns out of objects in JSON. What no column holds is skipped, and the JSON of a cell is not decoded.

    No place of a column is that of the rest of an object.
    """

    def __init__(self, columns: Mapping[str, FlatColumn]) -> None:
        # An object is decoded once, and again for what lies in the JSON of another column.
        parts: list[dict[str, FlatColumn]] = []
        for name, column in columns.items():
            part = next((each for each in parts if not any(_overlap(column, other) for other in each.values())), None)
            if part is None:
                parts.append(part := {})
            part[name] = column
        self._parts = [(_decoder(part.values()), _getter(part.values())) for part in parts]
        self._columns = {name: column for part in parts for name, column in part.items()}
        self._maker = RowMaker("", self._columns)

    def cells(self, objects: Iterable[bytes]) -> dict[str, Sequence[Cells]]:
        """The cells of each column. Raises RunDirectoryError for one that does not fit."""
        cells = zip(*map(self._row, objects), strict=True)
        return {
            name: [*map(_written_text, each)] if column.kind == "json" else each
            for (name, column), each in zip(self._columns.items(), cells, strict=True)
        }

    def _row(self, data: bytes) -> list[Any]:
        try:
            return [cell for decoder, get in self._parts for cell in get(decoder.decode(data))]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # A value of another type, half a surrogate pair, or null in place of an object.
            (row,) = self._maker.rows(json.loads(data))
            return [*row.values()]


_Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=-_INTEGER_MAX, le=_INTEGER_MAX - 1)]
_TYPES: Final[Mapping[Kind, Any]] = {
    "text": str | None,
    "integer": _Integer | None,
    "number": float | None,
    "truth": bool | None,
    "texts": list[str] | None,
    "integers": list[_Integer] | None,
    "numbers": list[float] | None,
    "messages": None,
    "json": msgspec.Raw,
}
"""What a value is decoded as that is a cell as it is."""


def _overlap(one: FlatColumn, other: FlatColumn) -> bool:
    """Whether the place of one column is that of the other, or lies in it."""
    ours, theirs = _path(one), _path(other)
    shared = min(len(ours), len(theirs))
    return ours[:shared] == theirs[:shared]


def _decoder(columns: Iterable[FlatColumn]) -> msgspec.json.Decoder[Any]:
    """Decodes the places of columns as structs in structs; what is missing is None."""
    tree: dict[str, Any] = {}
    for column in columns:
        *above, last = _path(column)
        inner = tree
        for key in above:
            inner = inner.setdefault(key, {})
        inner[last] = _TYPES[column.kind]
    # The struct is learned here, before another thread can use it.
    return msgspec.json.Decoder(_struct(tree))


def _struct(tree: Mapping[str, Any]) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for key, of in tree.items():
        kind = _struct(of) if isinstance(of, dict) else of
        fields.append((_attribute(key), kind, kind() if isinstance(of, dict) else None))
    return msgspec.defstruct("Part", fields, rename={_attribute(key): key for key in tree}, frozen=True, gc=False)


def _getter(columns: Iterable[FlatColumn]) -> Callable[[msgspec.Struct], tuple[Any, ...]]:
    """Gets the values of columns from the struct that `_decoder` makes."""
    names = [".".join(map(_attribute, _path(column))) for column in columns]
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda part: (get(part),)


def _attribute(key: str) -> str:
    """The name of an attribute, which a key itself need not be."""
    return f"key_{key.encode().hex()}"


def _path(column: FlatColumn) -> tuple[str, ...]:
    return _keys(column.source.removesuffix("[]"))


def _keys(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()


def _elements(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _rest(value: JsonValue, taken: frozenset[str]) -> JsonValue:
    rest = {key: inner for key, inner in value.items() if key not in taken} if isinstance(value, dict) else {}
    return rest or None


def keys_below(prefix: str, sources: Iterable[str]) -> frozenset[str]:
    """The keys that paths have behind a prefix."""
    behind = (source.removeprefix(prefix) for source in sources if source.startswith(prefix))
    return frozenset(rest.split(".")[0].removesuffix("[]") for rest in behind) - {"*"}


def leaves(value: JsonValue, path: str = "") -> Iterator[str]:
    """The path of every value of a transcript that is neither an object nor a list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path


def covers(source: str, path: str) -> bool:
    """Whether the column of a source holds the value at a path."""
    if source.endswith(_REST):
        return path.startswith(source.removesuffix("*"))
    whole, _, entry = source.rpartition(".")
    if entry.isdecimal():
        return path == f"{whole}[]"
    source = source.removesuffix("[]")
    return path == source or path.startswith((f"{source}.", f"{source}[]"))
