"""How many questions were discussed, and how many of them more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from mac_runner.environments.discussion.results.outcome import DiscussionResult
from mac_runner.results import count_text, integer, section
from mac_runner.types import JsonObject

SECTION: Final = "discussion_questions"


class QuestionResults:
    """Counts discussions by question; its memory follows the number of questions."""

    def __init__(self) -> None:
        self._discussions: Counter[str] = Counter()

    def add(self, result: DiscussionResult) -> None:
        """Count one discussion."""
        self._discussions[result.question_id or ""] += 1

    def report(self) -> JsonObject:
        """`discussion_questions`: how many there are, how many of them repeat, and how often the commonest comes."""
        if not self._discussions:
            return {}
        return {
            SECTION: {
                "n": len(self._discussions),
                "discussions": self._discussions.total(),
                "repeated": sum(count > 1 for count in self._discussions.values()),
                "most": max(self._discussions.values()),
            }
        }


def repetition_lines(summary: JsonObject) -> Iterator[tuple[str, str]]:
    """That questions repeat, where they do."""
    report = section(summary, SECTION)
    if repeated := integer(report.get("repeated")):
        over = f"{count_text(report.get('discussions'))} discussions over {count_text(report.get('n'))} questions"
        more = f"{count_text(repeated)} discussed more than once, at most {count_text(report.get('most'))} times"
        yield "questions repeat", f"{over}: {more}"
