"""What the experiments of this repository lead to, as digests of each conversation: no change of the code may move one.

    python -m tests.golden.conversations compare            # play all of them and compare
    python -m tests.golden.conversations compare --first 3  # three conversations of each
    python -m tests.golden.conversations record             # only where a release means to change what models read

A line of `tests/golden/digests/NAME.txt` is one conversation: its task id, how many turns it took, and a digest
each of its prompts, its replies, what was made of them, its final state, and its outcome with everything that was
recorded. Token counts and times are left out: they may move without any text moving.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from mac_runner.types import JsonObject, JsonValue

RECORDED = Path(__file__).parent / "digests"
ROOT = Path(__file__).parents[2]
DIGEST_CHARS = 12
SHOWN_MAX = 5


class Played(NamedTuple):
    """A command of `mac-run` whose conversations are recorded; `directories` are those of a grid's combinations."""

    name: str
    arguments: tuple[str, ...]


PLAYED = (
    Played("classic_10", ("experiments/tos_100games.yaml",)),
    Played("ranked_15", ("experiments/tos_100games.yaml", "--set", "game.lobby=ranked-15", "--limit", "40")),
    Played("tos_information_lag", ("experiments/tos_information_lag.yaml",)),
    Played("bbq_moderated", ("experiments/bbq_moderated.yaml",)),
    Played("tos_grid", ("experiments/tos_grid.yaml",)),
)


class Line(NamedTuple):
    """One conversation."""

    task: str
    turns: int
    prompts: str
    replies: str
    receipts: str
    state: str
    outcome: str

    def __str__(self) -> str:
        return " ".join(map(str, self))


def line_of(transcript: JsonObject, combination: str) -> Line:
    """The line of a transcript; `combination` is the directory it lies in, empty unless it is a grid's."""
    task, turns = transcript["task"], transcript["turns"]
    assert isinstance(task, dict)
    assert isinstance(turns, list)
    prompts: list[JsonValue] = []
    replies: list[JsonValue] = []
    receipts: list[JsonValue] = []
    for turn in turns:
        assert isinstance(turn, dict)
        reply = turn["reply"]
        assert isinstance(reply, dict)
        prompts.append([turn["turn"], turn["prompt_sha256"]])
        replies.append([reply["text"], reply["finish_reason"]])
        receipts.append(turn["receipt"])
    return Line(
        task="/".join(filter(None, (combination, str(task["task_id"])))),
        turns=len(turns),
        prompts=_digest(prompts),
        replies=_digest(replies),
        receipts=_digest(receipts),
        state=str(transcript["final_state_sha256"])[:DIGEST_CHARS],
        outcome=_digest([transcript["status"], transcript["failure"], transcript["outcome"], transcript["record"]]),
    )


def play(played: Played, *, first: int | None = None) -> list[Line]:
    """Play it with the command line and read the transcripts: the first few of each combination, or all."""
    limit = () if first is None else ("--limit", str(first))
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        command = (sys.executable, "-m", "mac_runner.cli", *played.arguments, *limit, "--out", str(out), "--quiet")
        subprocess.run(command, cwd=ROOT, check=True)
        return sorted(_lines(out))


def recorded(played: Played, *, first: int | None = None) -> list[str]:
    """The lines that were recorded, of the first few conversations of each combination or of all."""
    lines = (RECORDED / f"{played.name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if first is None or int(line.split()[0][-6:]) < first]


def differences(played: Played, *, first: int | None = None) -> list[str]:
    """What is not as it was recorded, a line for each conversation."""
    now = [str(line) for line in play(played, first=first)]
    fields = " ".join(Line._fields)
    return [
        f"{played.name} ({fields}):\n  recorded {then}\n  now      {line}"
        for then, line in zip_longest(recorded(played, first=first), now, fillvalue="none")
        if then != line
    ]


def _lines(out: Path) -> Iterator[Line]:
    for path in out.glob("**/transcripts/*.json"):
        combination = path.parent.parent.relative_to(out).as_posix()
        yield line_of(json.loads(path.read_bytes()), "" if combination == "." else combination)


def _digest(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def main(argv: Sequence[str] | None = None) -> int:
    """Record, or compare and say what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.conversations")
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("names", nargs="*", help=", ".join(played.name for played in PLAYED))
    parser.add_argument("--first", type=int, help="so many conversations of each combination; all unless given")
    arguments = parser.parse_args(argv)
    code = 0
    for played in PLAYED:
        if arguments.names and played.name not in arguments.names:
            continue
        if arguments.verb == "record":
            RECORDED.mkdir(exist_ok=True)
            text = "".join(f"{line}\n" for line in play(played))
            (RECORDED / f"{played.name}.txt").write_text(text, encoding="utf-8")
            continue
        found = differences(played, first=arguments.first)
        sys.stdout.write(
            f"{played.name}: {len(recorded(played, first=arguments.first))} conversations, {len(found)} differ\n"
        )
        sys.stdout.writelines(f"{line}\n" for line in found[:SHOWN_MAX])
        code = code or bool(found)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
