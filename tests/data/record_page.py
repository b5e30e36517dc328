"""What docs/transcripts.md says of the outcomes and records of games and discussions: the lists of their fields.

python -m tests.data.record_page      # writes the lists into the page
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap

from msgspec import Struct, inspect

from mac_runner.environments.discussion.testing import DiscussionResult, Record
from mac_runner.environments.town_of_salem.testing import GameRecord, Outcome
from mac_runner.flat import described
from tests.pages import DOCS

PAGE = DOCS / "transcripts.md"
_LISTS = re.compile(r"(<!-- fields -->\n).*(<!-- end of fields -->)", re.DOTALL)
_KINDS: dict[type[inspect.Type], str] = {
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "truth value",
    inspect.ListType: "list",
    inspect.VarTupleType: "list",
    inspect.TupleType: "list",
    inspect.DictType: "object",
    inspect.StructType: "object",
}


def fields(row: type[Struct] | inspect.StructType, indent: str = "") -> Iterator[str]:
    """The fields of a struct, each with those of the structs in it."""
    if isinstance(row, inspect.StructType) and row.tag_field is not None:
        yield f"{indent}- `{row.tag_field}` (text): `{row.tag}`"
    for field in described(row):
        kinds = dict.fromkeys(map(kind_of, field.of.types if isinstance(field.of, inspect.UnionType) else [field.of]))
        said = f"{indent}- `{field.key}` ({' or '.join(kinds)}){field.meaning and f': {field.meaning}'}"
        yield from wrap(said, 100, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False)
        for inner in structs(field.of):
            yield from fields(inner, f"{indent}  ")


def kind_of(found: inspect.Type) -> str:
    """What a value is called."""
    is_row = isinstance(found, inspect.StructType) and found.array_like
    return "list" if is_row else _KINDS.get(type(found), "text")


def structs(found: inspect.Type) -> Iterator[inspect.StructType]:
    """The structs whose fields are listed below a field: its own, those of its list, or those under its keys."""
    match found:
        case inspect.StructType() if not found.array_like:
            yield found
        case inspect.ListType():
            yield from structs(found.item_type)
        case inspect.DictType():
            yield from structs(found.value_type)
        case inspect.UnionType():
            for each in found.types:
                yield from structs(each)


def with_fields(page: str) -> str:
    """The page with its lists made anew."""
    parts = ["", "The outcome of a game:", "", *fields(Outcome), ""]
    parts += ["The record of a game, with every player by name:", "", *fields(GameRecord), ""]
    parts += ["The outcome of a discussion, in which a pass is null:", "", *fields(DiscussionResult), ""]
    parts += ["The record of a discussion:", "", *fields(Record), ""]
    return _LISTS.sub(lambda match: "\n".join((match[1].rstrip(), *parts, match[2])), page)


if __name__ == "__main__":
    PAGE.write_text(with_fields(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
