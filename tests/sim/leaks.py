"""Whether a text gives a key away: the eye of somebody who reads it with every common decoder at hand.

It shares nothing with the redaction that it judges, and decodes all that can be decoded, several times over.
"""

from __future__ import annotations

import binascii
import html
import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

RUN_CHARS: Final = 5
"""So many characters of a key in a row give it away."""
_DEPTH: Final = 3
_WORD: Final = re.compile(r"[A-Za-z0-9+/_-]{7,}")
_HEX: Final = re.compile(r"[0-9A-Fa-f]{9,}")


def leak_in(text: str, key: str, run: int = RUN_CHARS) -> str | None:
    """A run of `key` that `text` shows, in any case and any usual encoding; None where it shows none."""
    folded = key.lower()
    size = min(run, len(folded))
    runs = {folded[start : start + size] for start in range(len(folded) - size + 1)}
    seen = {text}
    layers = [text]
    for _ in range(_DEPTH + 1):
        for layer in layers:
            lower = layer.lower()
            shown = runs & {lower[start : start + size] for start in range(len(lower) - size + 1)}
            if shown:
                return min(shown)
        layers = [inside for layer in layers for inside in _inside(layer) if inside not in seen]
        seen.update(layers)
    return None


def _inside(text: str) -> Iterator[str]:
    if "\\" in text:
        plain = re.sub(r"\\+(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2}))", _char, text)
        yield re.sub(r"\\+([\"'/\\])", r"\1", plain)
    if "&" in text:
        yield html.unescape(text)
    if "%" in text:
        yield unquote(text, errors="replace")
    if any(char in text for char in "\x00\u200b\u00ad"):
        yield re.sub("[\x00\u200b\u00ad]", "", text)
    words = set(_WORD.findall(text))
    if words:
        yield " ".join(found for word in words for found in _from_base64(word))
    hexes = set(_HEX.findall(text))
    if hexes:
        yield " ".join(_from_hex(word[start:]) for word in hexes for start in (0, 1))


def _char(match: re.Match[str]) -> str:
    code = int(match.group(1) or match.group(2), 16)
    return chr(code) if code else ""


def _from_base64(word: str) -> Iterator[str]:
    ordinary = word.replace("-", "+").replace("_", "/")
    for start in range(4):
        part = ordinary[start:]
        size = len(part) - (len(part) % 4 == 1)
        part = part[:size] + "=" * (-size % 4)
        try:
            yield b64decode(part).decode("latin-1")
        except binascii.Error:
            continue


def _from_hex(word: str) -> str:
    return bytes.fromhex(word[: len(word) // 2 * 2]).decode("latin-1")
