"""What the experiments of this repository lead to, the planted bugs, and the speed: no change may move them.

    python -m tests.golden.oracles compare [NAME...]            # play the experiments: is all as it was recorded?
    python -m tests.golden.oracles compare --bugs               # plant the bugs: is none gone, and is each found?
    python -m tests.golden.oracles compare --benchmarks COMMIT  # how fast is this tree? Measured in turns with that one
    python -m tests.golden.oracles record [NAME...] [--bugs]    # only where a change means to move what is recorded

All of `experiments/` is played as it stands, with programs in place of models, and of the large ones the first
conversations; profiles, which need servers, keys or weights, are not. `digests/NAME.json` has a line for each subject,
with a digest of each of its parts:

- `conversation`: its prompts, its replies, what was made of them, its final state, its outcome, its record, the deal,
  the counts of turns and tokens, and `whole`: all of the transcript as it is written.
- `summary`, `comparisons`: each of their sections, and `whole`.
- `tables`: each one that `mac-run show --tables` prints.
- `csv`, `parquet`: each column that `mac-run export` writes, and those of a grid's own table.

Times, and what depends on them, are left out everywhere. Another format of what lies on the disk moves `whole` of all
that is written in it. Once this file has been told the new names, it moves another part only where that part is taken
over as it was written, and a field in it has another name: `receipts`, `outcome`, `record`, `deal`, `counts`, a
section, an exported column of JSON. It never moves `prompts`, `replies`, `state`, `tables` or any other column.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pyarrow.parquet

RECORDED = Path(__file__).parent / "digests"
BUGS = Path(__file__).parent / "bugs.txt"
PYTEST = (sys.executable, "-m", "pytest", "-m", "")
BUGGED = ("tests/faults/test_mutants.py", "tests/fleet/test_storms.py")
ROOT = Path(__file__).parents[2]
JOBS = 2
DIGEST_CHARS = 8
SHOWN_MAX = 5
PAIRS = 3
BENCHMARKS = (
    ("benchmarks.main_job", "--conversations", "20"),
    ("benchmarks.orchestrator", "--conversations", "100"),
    ("benchmarks.scale", "--conversations", "1000"),
)
TIMES = re.compile(
    "timing|wall_s|played_s|turns_per_s|conversations_per_s|slots_mean|slot_utilisation|started_at|libraries"
)
"""Keys of what differs from run to run, or with the libraries that are installed."""
TIME_LINES = ("wall time ", "played ", "Seconds that a request took")
TIME_COLUMN = "slots used"
UNKEPT = re.compile(r"timing|^row\.")
"""Where exported columns come from that are times, or of the file with them: its size, its digest."""

Subjects = dict[str, dict[str, Any]]


class Played(NamedTuple):
    """A command of `mac-run` whose results are recorded."""

    name: str
    arguments: tuple[str, ...]


PLAYED = (
    Played("bbq_identity", ("bbq_identity.yaml", "--limit", "20")),
    Played("bbq_moderated", ("bbq_moderated.yaml",)),
    Played("classic_10", ("tos_100games.yaml",)),
    Played("discussion_openai", ("discussion_openai.yaml",)),
    Played("discussion_small", ("discussion_small.yaml",)),
    Played("echo", ("echo.yaml", "--limit", "100")),
    Played("ranked_15", ("tos_100games.yaml", "--set", "game.lobby=ranked-15", "--limit", "40")),
    Played("tos_a_vs_b", ("tos_a_vs_b.yaml", "--limit", "25")),
    Played("tos_grid", ("tos_grid.yaml",)),
    Played("tos_information_lag", ("tos_information_lag.yaml",)),
    Played("tos_tournament", ("tos_tournament.yaml", "--limit", "10")),
)


def play(played: Played) -> Subjects:
    """Play it with the command line, print and export its tables, and read all that was written."""
    with tempfile.TemporaryDirectory() as directory:
        run, tables = Path(directory) / "run", Path(directory) / "tables"
        _mac_run(f"experiments/{played.arguments[0]}", *played.arguments[1:], "--out", str(run), "--quiet")
        printed = _mac_run("show", str(run), "--tables")
        _mac_run("export", str(run), "--to", str(tables), "--format", "csv", "--format", "parquet")
        return {**dict(_written(run)), "tables": _tables(printed), **dict(_exported(tables)), **dict(_grid_table(run))}


def differences(recorded: Subjects, now: Subjects) -> dict[str, list[str]]:
    """The parts of each subject that are not as they were recorded."""
    found = {
        subject: [part for part in {**then, **parts} if then.get(part) != parts.get(part)]
        for subject in {**recorded, **now}
        for then, parts in [(recorded.get(subject, {}), now.get(subject, {}))]
    }
    return {subject: parts for subject, parts in found.items() if parts}


def told(name: str, recorded: Subjects, now: Subjects) -> Iterator[str]:
    """What a reader is told: of each kind of subject how many differ, in which parts, and the first few."""
    found = differences(recorded, now)
    yield f"{name}: {len(recorded)} recorded, {len(found)} differ"
    kinds = defaultdict(list)
    for subject in found:
        kinds[subject.split()[0]].append(subject)
    for kind, subjects in kinds.items():
        parts = Counter(part for subject in subjects for part in found[subject])
        yield f"  {kind}: {len(subjects)} differ; {', '.join(f'{part} {n}' for part, n in parts.most_common())}"
        for subject in subjects[:SHOWN_MAX]:
            is_both = subject in recorded and subject in now
            what = ", ".join(found[subject]) if is_both else "is new" if subject in now else "is gone"
            yield f"    {subject}: {what}"
    if found:
        yield f"  if all of this is meant: python -m tests.golden.oracles record {name}"


def read(played: Played) -> Subjects:
    """What was recorded."""
    subjects: Subjects = json.loads((RECORDED / f"{played.name}.json").read_text(encoding="utf-8"))
    return subjects


def write(played: Played, subjects: Subjects) -> None:
    """Record it, a line for each subject."""
    lines = (f"{json.dumps(subject)}: {json.dumps(parts)}" for subject, parts in subjects.items())
    (RECORDED / f"{played.name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _written(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What lies in a run directory or a grid."""
    for path in sorted(run.glob("**/transcripts/*.json")):
        transcript = json.loads(path.read_bytes())
        yield f"conversation {transcript['task']['task_id']}", _conversation(transcript)
    files = {f"{name} .": run / f"{name}.json" for name in ("summary", "comparisons")}
    files |= {f"summary {path.stem}": path for path in sorted(run.glob("summaries/*.json"))}
    for subject, path in files.items():
        if path.exists():
            content = _timeless(json.loads(path.read_bytes()))
            parts = {section: _digest(value) for section, value in _sections(content)}
            yield subject, {**parts, "whole": _digest(content, is_ordered=True)}


def _conversation(transcript: dict[str, Any]) -> dict[str, Any]:
    turns = transcript["turns"]
    replies = [turn["reply"] for turn in turns]
    return {
        "turns": len(turns),
        "prompts": _digest([[turn["turn"], turn["prompt_sha256"]] for turn in turns]),
        "replies": _digest([[reply["text"], reply["finish_reason"]] for reply in replies]),
        "receipts": _digest([turn["receipt"] for turn in turns]),
        "state": transcript["final_state_sha256"][:DIGEST_CHARS],
        "outcome": _digest([transcript["status"], transcript["failure"], transcript["outcome"]]),
        "record": _digest(transcript["record"]),
        "deal": _digest(transcript["task"]),
        "counts": _digest(_timeless([transcript["counts"], [reply["tokens"] for reply in replies]])),
        "whole": _digest(_timeless(transcript), is_ordered=True),
    }


def _sections(content: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a summary, two levels deep."""
    for key, value in content.items():
        inner = value.items() if isinstance(value, dict) and value else [("", value)]
        yield from ((f"{key}.{name}".rstrip("."), part) for name, part in inner)


def _tables(printed: str) -> dict[str, Any]:
    """A digest of each table by its first line, which is its title if it has one."""
    found = defaultdict(list)
    for table in printed.split("\n\n"):
        lines = [line for line in table.strip().splitlines() if not line.startswith(TIME_LINES)]
        if lines and TIME_COLUMN not in table:
            found[lines[0]].append(lines)
    return {title: _digest(tables) for title, tables in found.items()}


def _exported(tables: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    schema = json.loads((tables / "_schema.json").read_text(encoding="utf-8"))
    for name, table in schema["tables"].items():
        sources = {column: about.get("source", "") for column, about in table["columns"].items()}
        kept = {column for column, source in sources.items() if not UNKEPT.search(source)}
        if (path := tables / f"{name}.csv").exists():
            yield f"csv {name}", _csv_columns(path, kept)
        if parts := sorted((tables / name).glob("*.parquet")):
            yield f"parquet {name}", _parquet_columns(parts, kept)


def _grid_table(run: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if (run / "grid.csv").exists():
        yield "csv grid", _csv_columns(run / "grid.csv")
        yield "parquet grid", _parquet_columns([run / "grid.parquet"])


def _csv_columns(path: Path, kept: set[str] | None = None) -> dict[str, Any]:
    with path.open(encoding="utf-8", newline="") as file:
        columns = {head: cells for head, *cells in zip(*csv.reader(file), strict=True)}
    return _columns(columns, kept)


def _parquet_columns(paths: Iterable[Path], kept: set[str] | None = None) -> dict[str, Any]:
    columns: dict[str, list[Any]] = defaultdict(list)
    for path in paths:
        for name, cells in pyarrow.parquet.read_table(path).to_pydict().items():
            columns[name] += cells
    return _columns(columns, kept)


def _columns(columns: Mapping[str, list[Any]], kept: set[str] | None) -> dict[str, Any]:
    digests = {name: _digest(cells) for name, cells in columns.items() if kept is None or name in kept}
    return {**digests, "(heads)": _digest([*columns])}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if not TIMES.fullmatch(key)}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def _digest(value: Any, *, is_ordered: bool = False) -> str:
    text = json.dumps(value, sort_keys=not is_ordered, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def _mac_run(*arguments: str) -> str:
    return _python(ROOT, "mac_runner", *arguments)


def _python(tree: Path, module: str, *arguments: str) -> str:
    """What a module of a tree prints. Its complaints are let through."""
    command = (sys.executable, "-m", module, *arguments)
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout


def play_all(chosen: Sequence[Played]) -> Iterator[tuple[Played, Subjects]]:
    """What some lead to, several at a time."""
    with ThreadPoolExecutor(JOBS) as pool:
        yield from zip(chosen, pool.map(play, chosen), strict=True)


def compare(chosen: Sequence[Played]) -> int:
    """Play them and say what differs."""
    code = 0
    for played, now in play_all(chosen):
        recorded = read(played)
        _say(*told(played.name, recorded, now))
        code = code or int(recorded != now)
    return code


def planted() -> list[str]:
    """The tests that plant a bug each, by their names."""
    command = (*PYTEST, "--collect-only", "-q", "-k", "test_planted_bug", *BUGGED)
    listed = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    if listed.returncode:
        sys.exit(listed.stdout)
    return sorted(line for line in listed.stdout.splitlines() if "::" in line)


def compare_bugs() -> int:
    """Say which of the planted bugs are gone or new, and plant all that there are."""
    recorded, now = BUGS.read_text(encoding="utf-8").splitlines(), planted()
    _say(*(f"gone: {name}" for name in recorded if name not in now))
    _say(*(f"not recorded: {name}" for name in now if name not in recorded))
    code = subprocess.run((*PYTEST, "-q", "-n", str(JOBS), *now), cwd=ROOT, check=False).returncode
    return int(code != 0 or recorded != now)


def compare_benchmarks(commit: str) -> int:
    """Run each benchmark in the tree of a commit and in this one, in turns, and print their figures side by side."""
    with tempfile.TemporaryDirectory() as directory:
        then = Path(directory) / "tree"
        subprocess.run(("git", "worktree", "add", "--quiet", "--detach", then, commit), cwd=ROOT, check=True)
        try:
            for benchmark in BENCHMARKS:
                rows: dict[Path, list[dict[str, Any]]] = {then: [], ROOT: []}
                for number in range(PAIRS):
                    for tree in (then, ROOT) if number % 2 == 0 else (ROOT, then):
                        rows[tree].append(json.loads(_python(tree, *benchmark).splitlines()[-1]))
                _say(" ".join(benchmark), *ratios(rows[then], rows[ROOT]))
        finally:
            subprocess.run(("git", "worktree", "remove", "--force", then), cwd=ROOT, check=True)
    return 0


def ratios(then: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each figure that is measured: its medians, and the ratios of the pairs, new by old."""
    for name in (name for name in now[0] if name in then[0]):
        pairs = [(old[name], new[name]) for old, new in zip(then, now, strict=True)]
        figures = [figure for pair in pairs for figure in pair]
        if len(set(figures)) > 1 and all(isinstance(figure, int | float) and figure for figure in figures):
            found = sorted(new / old for old, new in pairs)
            old, new = (median(side) for side in zip(*pairs, strict=True))
            yield f"  {name:<32}{old:>12g} {new:>12g}   {median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f})"


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Record, or compare and say what differs."""
    names = [played.name for played in PLAYED]
    parser = argparse.ArgumentParser(prog="python -m tests.golden.oracles")
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"these alone: {', '.join(names)}")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--bugs", action="store_true", help="the planted bugs instead")
    instead.add_argument("--benchmarks", metavar="COMMIT", help="the speed instead, against that commit")
    asked = parser.parse_args(argv)
    if unknown := set(asked.names) - set(names):
        parser.error(f"nothing is played as {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    chosen = [played for played in PLAYED if not asked.names or played.name in asked.names]
    if asked.benchmarks and asked.verb == "record":
        parser.error("--benchmarks is compared only")
    if asked.benchmarks:
        return compare_benchmarks(asked.benchmarks)
    if asked.verb == "compare":
        return compare_bugs() if asked.bugs else compare(chosen)
    if asked.bugs:
        BUGS.write_text("".join(f"{name}\n" for name in planted()), encoding="utf-8")
    else:
        for played, now in play_all(chosen):
            write(played, now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
