"""Thoughts told apart from answers, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.nano.testing import Said, Stage, ThoughtParser

TEXTS = [
    (Stage.BEFORE, "<think>\nwell, well\n</think>\n\nYes.", Said("well, well", "Yes.")),
    (Stage.BEFORE, "\n <think>so</think>no", Said("so", "no")),
    (Stage.BEFORE, "Yes, <think> is a tag", Said("", "Yes, <think> is a tag")),
    (Stage.BEFORE, "<thi", Said("", "<thi")),
    (Stage.BEFORE, "  two spaces", Said("", "  two spaces")),
    (Stage.BEFORE, "<think></think>\nyes\n", Said("", "yes\n")),
    (Stage.BEFORE, "<think>a < b </ c </thin> d</think>e", Said("a < b </ c </thin> d", "e")),
    (Stage.BEFORE, "<think>a</think>b</think>c", Said("a", "b</think>c")),
    (Stage.BEFORE, "<think>cut off </th", Said("cut off </th", "")),
    (Stage.THOUGHT, "\nopened by the prompt</think>\nyes", Said("opened by the prompt", "yes")),
    (Stage.ANSWER, " <think>as it is</think> ", Said("", " <think>as it is</think> ")),
]


def said(stage: Stage, pieces: list[str]) -> Said:
    parser = ThoughtParser(stage)
    told = [*map(parser.push, pieces), parser.finish()]
    return Said("".join(each.thinking for each in told), "".join(each.content for each in told))


@pytest.mark.parametrize(("stage", "text", "expected"), TEXTS)
def test_thought_and_answer_are_told_apart_letter_by_letter_and_at_once(
    stage: Stage, text: str, expected: Said
) -> None:
    assert said(stage, [text]) == expected
    assert said(stage, list(text)) == expected


@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think>", " ", "\n", "a", "<"])),
    stage=st.sampled_from(list(Stage)),
)
def test_cut_of_a_text_makes_no_difference(pieces: list[str], stage: Stage) -> None:
    text = "".join(pieces)

    assert said(stage, pieces) == said(stage, [text]) == said(stage, list(text))


class Watched(str):
    """A text that counts how many of its characters, and of those of a text begun with it, are looked at."""

    __slots__ = ()
    looked_at = 0

    def __add__(self, more: str) -> Watched:
        return Watched(f"{self!s}{more!s}")

    def __radd__(self, held: str) -> Watched:
        return Watched(f"{held!s}{self!s}")

    def lstrip(self, characters: str | None = None) -> Watched:
        Watched.looked_at += len(self)
        return Watched(super().lstrip(characters))

    def partition(self, tag: str) -> tuple[str, str, str]:
        Watched.looked_at += len(self)
        return super().partition(tag)


def test_white_space_that_is_kept_back_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much of it, in pieces, may not cost the square of its length."""
    for stage, start in ((Stage.BEFORE, ""), (Stage.THOUGHT, ""), (Stage.BEFORE, "<think>so")):
        monkeypatch.setattr(Watched, "looked_at", 0)
        told = said(stage, [start, *[Watched("\u2028" * 32)] * 200])

        assert 32 * 200 <= Watched.looked_at < 32 * 210
        assert told.thinking.startswith("so" if start else "")


def test_nothing_is_kept_back_that_can_be_told() -> None:
    parser = ThoughtParser(Stage.BEFORE)

    assert [parser.push(piece) for piece in ("<think>", "so", " it", " <", "b", "</think>", " ", "yes", " no")] == [
        Said(), Said("so"), Said(" it"), Said(), Said(" <b"), Said(), Said(), Said("", "yes"), Said("", " no"),
    ]  # fmt: skip
