"""The pages of the documentation as a reader uses them: their blocks are found, written to files and played."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
_FILES = ("python", "yaml")


class Block(NamedTuple):
    """A block of code."""

    kind: str
    text: str
    printed: str
    """The block of text behind it, which is what it prints."""


def section(page: Path, heading: str) -> str:
    """The part of a page below a heading of the second level."""
    return page.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(page: Path, heading: str = "") -> list[Block]:
    """The blocks of a page, or of the part below a heading, in their order."""
    return [Block(*found) for found in _BLOCK.findall(section(page, heading) if heading else page.read_text("utf-8"))]


def files(place: Path, found: list[Block], *names: str) -> None:
    """Write the blocks that are files. Without `names` each begins with a comment that is its name."""
    texts = [block.text for block in found if block.kind in _FILES]
    own = [text.partition("\n")[0].removeprefix("# ") for text in texts]
    assert len(texts) == len(names or own), f"blocks that begin {own} are not the files {names}"
    for name, text in zip(names or own, texts, strict=True):
        (place / name).write_text(text, encoding="utf-8")


def commands(text: str) -> list[list[str]]:
    """The arguments of each command of ours, each as it stands behind `mac-run`, up to what the shell does with it."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "mac-run" in words:
            words = words[words.index("mac-run") + 1 :]
            end = next((place for place, word in enumerate(words) if word in ("|", ">", "&&", ";", "&")), len(words))
            found.append(words[:end])
    return found
