"""How much do token traces take, on the disk and in memory?

Run `python -m benchmarks.traces`. Scripted players play games of Town of Salem. Their prompts are rendered again, and a
stand-in for a tokenizer cuts them into words, spaces and signs, which makes more tokens than a real one. The same
traces are then kept as earlier versions kept them, as lists of numbers in transcript and journal, and as they are kept
now.

- `json_bytes` is what a game took in its transcript, and the same again in the journal.
- `file_bytes` and `journal_bytes` are what it takes now, in `traces/` and in the journal.
- `encode_ms` is the CPU time for the file of a game, `frames_ms` that for all its frames.
- `held_bytes` is the memory of an open game at its end, `held_before_bytes` what its tuples of numbers took.

The last line is one JSON row.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Final, TypeVar

import mac_runner
from benchmarks.machine import row
from mac_runner.runs.replays import Replays
from mac_runner.store import journal, read_run, replies_of
from mac_runner.store.records import encode_json
from mac_runner.store.traces import TraceLog, encode_traces
from mac_runner.types import JsonObject, RecordedReply, TokenTrace

FILE: Final = Path(__file__).parent.parent / "experiments/tos_100games.yaml"
_PIECES: Final = re.compile(r"\w+|\s+|[^\w\s]")
T = TypeVar("T")
Game = list[tuple[RecordedReply, list[int], list[int], list[float]]]


def games(count: int, directory: Path) -> list[Game]:
    """The replies of so many games, each with the ids of its prompt, its own, and their log-probabilities."""
    mac_runner.run(FILE, limit=count, out=directory)
    contents, found = read_run(directory), []
    vocabulary: dict[str, int] = {}

    def ids(text: str) -> list[int]:
        # Spread like the ids of a large vocabulary.
        return [vocabulary.setdefault(piece, len(vocabulary)) * 7919 % 150_000 for piece in _PIECES.findall(text)]

    for ended in contents.rows():
        transcript = contents.acknowledged(ended)
        prompt_of, game = Replays(contents).prompts(transcript), []
        for recorded in replies_of(transcript):
            prompt = [one for message in prompt_of(recorded.turn_key).messages for one in ids(message.content)]
            made = ids(recorded.reply.text)
            game.append((recorded, prompt, made, [-((7 * place) % 997) / 331 for place in range(len(made))]))
        found.append(game)
    return found


def measured(game: Game) -> dict[str, float]:
    """The figures of one game."""
    said = [
        recorded.traced({recorded.turn_key: TokenTrace(prompt_ids=prompt, completion_ids=made, logprobs=likely)})
        for recorded, prompt, made, likely in game
    ]
    before = 0
    for _, prompt, made, likely in game:
        lists: JsonObject = {"prompt_ids": [*prompt], "completion_ids": [*made], "logprobs": [*likely]}
        before += len(encode_json({"trace": lists})) - 1
    log = TraceLog()
    frames, frames_s = timed(lambda: [journal.reply_frame("t", n, one, log) for n, one in enumerate(said)])
    plain = sum(len(journal.reply_frame("t", n, one.traceless())) for n, one in enumerate(said))
    traces = {one.turn_key: one.reply.trace for one in said if one.reply.trace is not None}
    file, file_s = timed(lambda: encode_traces(traces))
    return {
        "turns": len(game),
        "prompt_ids": sum(len(prompt) for _, prompt, _, _ in game),
        "json_bytes": before,
        "file_bytes": len(file),
        "journal_bytes": sum(map(len, frames)) - plain,
        "encode_ms": 1000 * file_s,
        "frames_ms": 1000 * frames_s,
        "held_before_bytes": held(lambda: [tuple(json.loads(json.dumps(prompt))) for _, prompt, _, _ in game]),
        "held_bytes": held(lambda: kept(said)),
    }


def kept(said: list[RecordedReply]) -> TraceLog:
    """The log of an open game."""
    log = TraceLog()
    for n, recorded in enumerate(said):
        log.add(n, recorded)
    return log


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` returns, and its CPU time."""
    start_s = time.process_time()
    return work(), time.process_time() - start_s


def held(make: Callable[[], object]) -> int:
    """The memory that what `make` returns takes."""
    tracemalloc.start()
    made = make()
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del made
    return size_bytes


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=3)
    arguments = parser.parse_args()
    encode_traces({"": TokenTrace(prompt_ids=(), completion_ids=(), logprobs=())})  # Imports pyarrow.
    with tempfile.TemporaryDirectory() as directory:
        found = [measured(game) for game in games(arguments.games, Path(directory) / "run")]
    means = {name: round(fmean(figures[name] for figures in found), 1) for name in found[0]}
    for name, mean in means.items():
        print(f"{name:>18} {mean:>14,.1f}")
    print(row(benchmark="traces", games=arguments.games, **means))


if __name__ == "__main__":
    main()
