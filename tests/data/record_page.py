"""What docs/run_directory.md says of the outcome and the record of a game: the lists of their fields.

python -m tests.data.record_page      # writes the lists into the page
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import wrap

from msgspec import Struct, inspect

from mac_runner.environments.town_of_salem.testing import GameRecord, Outcome
from mac_runner.flat import described
from tests.pages import DOCS

PAGE = DOCS / "run_directory.md"
_LISTS = re.compile(r"(<!-- fields -->\n).*(<!-- end of fields -->)", re.DOTALL)
_KINDS: dict[type[inspect.Type], str] = {
    inspect.AnyType: "text or list",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "truth value",
    inspect.ListType: "list",
    inspect.DictType: "object",
    inspect.StructType: "object",
}


def fields(row: type[Struct] | inspect.StructType, indent: str = "") -> Iterator[str]:
    """The fields of a struct, each with those of the structs in it."""
    for field in described(row):
        inner = field.of.item_type if isinstance(field.of, inspect.ListType) else field.of
        said = f"{indent}- `{field.key}` ({_KINDS.get(type(field.of), 'text')}){field.meaning and f': {field.meaning}'}"
        yield from wrap(said, 100, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False)
        if isinstance(inner, inspect.StructType):
            yield from fields(inner, f"{indent}  ")


def with_fields(page: str) -> str:
    """The page with its lists made anew."""
    parts = ["", "The outcome of a game:", "", *fields(Outcome), ""]
    parts += ["The record of a game, with every player by name:", "", *fields(GameRecord), ""]
    return _LISTS.sub(lambda match: "\n".join((match[1].rstrip(), *parts, match[2])), page)


if __name__ == "__main__":
    PAGE.write_text(with_fields(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
