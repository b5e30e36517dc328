"""One file of a run directory is damaged; every verb then either works, or says what is wrong, and nothing is made up.

No verb ends in a traceback or without end. What `verify` finds in order has the transcripts that it had. The run then
goes on to the same results, with all that is made of them, or says what keeps it; with the file put back it goes on in
any case.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import msgspec

from mac_runner.cli.process import Exit
from mac_runner.errors import MacRunnerError, RunDirectoryError
from mac_runner.types import JsonValue
from mac_runner.viewer.testing import RunSource
from tests.attacks.invocation import Ended, mac_run
from tests.attacks.mutation import Mutation, mutate, places, put_back, remove
from tests.attacks.scenes import MERGED, RUN, SCENES, Facts, Scene, facts, finished, outcome
from tests.cli.lab import RunDir
from tests.kit import acknowledge

DEADLINE_S: Final = 10.0
MAKERS_TRIED: Final = 2
"""Of the verbs that make something of a run, so many are tried on each damage."""
_AGAIN: Final = re.compile(r"(?:run|running) (?:it|the experiment|the same command) again")
_REMOVE: Final = re.compile(r"(?:re)?move (?:it|them)\b")
"""How a message names its remedy."""


def play(seed: int) -> str:
    """Damage a file as the dice of `seed` say; what was done, and what came of it."""
    dice = Random(seed)
    name = list(SCENES)[seed % len(SCENES)]
    scene = SCENES[name]()
    with TemporaryDirectory() as directory:
        path = Path(directory) / "scene"
        shutil.copytree(scene.path, path)
        mutation = mutate(path, dice, scene.names)
        try:
            makes = dice.sample(makers(scene.runs[0], is_grid=name == "grid"), MAKERS_TRIED)
            ending = Trial(name, scene, path, mutation, makes).play()
        except AssertionError as fault:
            raise AssertionError(f"{name}, {mutation}: {fault}") from None
    return f"{name}, {mutation}: {ending}"


SHOWS: Final = ((), ("--turns",), ("--thoughts",), ("--raw", "all"), ("--seat", "a"))
LEAVE: Final = (
    ("show", RUN, "1", "--html", "page.html"),
    ("publish", RUN, "pages"),
    ("export", RUN, "--to", "tables"),
    ("report", RUN, "--out", "report.html", "--json", "report.json"),
)
"""The verbs whose files leave this machine."""
ODD: Final[tuple[JsonValue, ...]] = (None, True, -1, 1.5, 10**400, "\ud800", "x", "\x1b[2J", [], {}, [1], {"a": 1})


def play_altered(seed: int) -> str:
    """A value of a transcript is another one, as it was acknowledged or not; what each verb then does.

    What was not acknowledged is found by `verify`, marked where people look, and in nothing that leaves the machine.
    """
    dice, is_acknowledged = Random(seed), seed % 2 == 1
    scene = finished()
    with TemporaryDirectory() as directory:
        path = Path(directory) / "scene"
        shutil.copytree(scene.path, path)
        transcript = sorted((path / RUN / "transcripts").iterdir())[1]
        content = json.loads(transcript.read_bytes())
        holder, key = dice.choice(places(content))
        holder[key] = dice.choice([odd for odd in ODD if odd != holder[key]])
        transcript.write_text(json.dumps(content))
        if is_acknowledged:
            acknowledge(path / RUN)
        codes = {
            " ".join([args[0], *[arg for arg in args if arg.startswith("--")][:1]]): mac_run(*args, directory=path)
            for args in (("verify", RUN), *(("show", RUN, "1", *more) for more in SHOWS), *LEAVE)
        }
        try:
            note = RunSource(path / RUN).conversation("", "1", "").note
        except RunDirectoryError as fault:
            note = str(fault)
        if not is_acknowledged:
            check_refused(path, transcript.stem, codes, note)
    return f"{key!r} is {holder[key]!r:.20}: {Counter(ended.code for ended in codes.values())}"


def check_refused(path: Path, task_id: str, codes: Mapping[str, Ended], note: str) -> None:
    """Every verb has seen that a transcript is not what was acknowledged."""
    expected = {
        "verify": Exit.FAILURES,
        "publish": Exit.FAILURES,
        "show --html": Exit.BAD_INPUT,
        "export --to": Exit.BAD_INPUT,
    }
    for name, code in expected.items():
        ended = codes[name]
        assert ended.code == code, ended
        assert task_id in ended.out + ended.err, ended
    assert not (path / "page.html").exists()
    for name in ("show", *(f"show {more[0]}" for more in SHOWS if more)):
        assert f"{task_id}.json" in codes[name].err, codes[name]
    assert task_id in note
    data = (path / "pages/data/0/c0/1.js").read_text("ascii")
    assert len(data) < len((path / "pages/data/0/c0/0.js").read_text("ascii")) / 2, "it was published all the same"


OUT: Final = "../out"
OUTCOMES: Final = {
    # Mended, or played again by the command that began the run.
    "verify": frozenset({Exit.OK, Exit.FAILURES, Exit.BAD_INPUT}),
    # Marked, or refused.
    "publish": frozenset({Exit.OK, Exit.FAILURES, Exit.BAD_INPUT}),
    "merge": frozenset({Exit.OK, Exit.FAILURES, Exit.BAD_INPUT}),
    "report": frozenset({Exit.OK, Exit.BAD_INPUT}),
    "show": frozenset({Exit.OK, Exit.BAD_INPUT}),
    "view": frozenset({Exit.OK, Exit.BAD_INPUT}),
    # Refused.
    "export": frozenset({Exit.OK, Exit.BAD_INPUT}),
    "fork": frozenset({Exit.OK, Exit.BAD_INPUT}),
}
"""How a verb may end on a damaged directory. A file that the system will not open fails any, which names it."""


def makers(run: str, *, is_grid: bool) -> tuple[tuple[str, ...], ...]:
    """The verbs that show all of a run, make something of it, or mend it."""
    each = (
        ("publish", run, f"{OUT}/pages"),
        ("export", run, "--to", f"{OUT}/tables"),
        ("report", run, "--out", f"{OUT}/report.html", "--json", f"{OUT}/report.json"),
        ("show", run),
        ("show", run, "--tables"),
        ("verify", run, "--repair"),
    )
    single = (
        *(("show", run, "0", *more) for more in SHOWS),
        ("show", run, "0", "--html", f"{OUT}/page.html"),
        ("merge", f"{OUT}/merged", run),
        ("fork", run, "0", "--turn", "#1", "--out", f"{OUT}/fork", "--quiet"),
        ("view", run),
    )
    return each if is_grid else (*each, *single)


class Made(NamedTuple):
    """What a verb came to: its exit code, what it said, and what it made."""

    code: int
    said: str
    made: object


def make(scene: Path, args: tuple[str, ...]) -> Made:
    """What a verb makes of a copy of a scene."""
    with TemporaryDirectory() as directory:
        path, out = Path(directory) / "scene", Path(directory) / "out"
        shutil.copytree(scene, path, symlinks=True, copy_function=_copy)
        out.mkdir()
        if args[0] == "view":
            return _pages(path / args[1])
        ended = mac_run(*args, directory=path, deadline_s=3 * DEADLINE_S)
        if args[0] == "show" and args[2:] not in ((), ("--tables",)) and "--html" not in args:
            return Made(ended.code, ended.err, ended.out)
        made: object = tree(out)
        if args[0] in ("merge", "fork") and ended.code in (Exit.OK, Exit.FAILURES):
            made = facts(out / ("merged" if args[0] == "merge" else "fork"))
        if args[0] == "verify" and ended.code == Exit.OK and (path / args[1] / "transcripts").is_dir():
            made = {file.name: file.read_bytes() for file in (path / args[1] / "transcripts").iterdir()}
        return Made(ended.code, ended.err + ended.out, made)


def _copy(source: str, target: str) -> None:
    if stat.S_ISFIFO(Path(source).lstat().st_mode):
        os.mkfifo(target)
    else:
        shutil.copy2(source, target)


def _pages(run: Path) -> Made:
    """What an open page shows of a conversation."""
    try:
        source = RunSource(run)
        page = source.conversation("", "0", "")
    except MacRunnerError as fault:
        return Made(Exit.BAD_INPUT, str(fault), None)
    return Made(Exit.OK, page.note, msgspec.to_builtins(msgspec.structs.replace(page, command="")))


@cache
def plain(name: str, args: tuple[str, ...]) -> Made:
    """What a verb makes of a scene where nothing is damaged."""
    return make(SCENES[name]().path, args)


class Trial:
    """A damaged working directory, and the verbs that are tried on it."""

    def __init__(
        self, name: str, scene: Scene, path: Path, mutation: Mutation, makes: Sequence[tuple[str, ...]]
    ) -> None:
        self.name = name
        self.makes = makes
        self.scene = scene
        self.path = path
        self.mutation = mutation
        self.result = path / (MERGED if name == "shards" else RUN)

    def play(self) -> str:
        """Read, go on, and put back; how it was mended."""
        self.read()
        for args in self.makes:
            self.make(args)
        before = tree(self.path)
        ended = self.run(*self.scene.ends)
        assert ended.code == Exit.OK or ended.err.strip(), f"it does not say why: {ended}"
        if ended.code == Exit.BAD_INPUT:
            changed = sorted(name for name in before if tree(self.path).get(name) != before[name])
            assert not changed, f"refused, and yet it changed {changed}"
        if self.is_well(ended):
            return "went on by itself"
        said = self.told(ended)
        if _AGAIN.search(said):
            again = self.remedy(said)
            if self.is_well(again):
                return "went on when its remedy was tried"
            named = [line for line in self.told(again).splitlines() if _AGAIN.search(line)]
            assert not named, f"a remedy that was tried and did nothing: {named}"
        return self.mend(ended)

    def told(self, ended: Ended) -> str:
        """What is wrong, in the words of the verb that did not end well, or of `verify`."""
        if ended.code not in (Exit.OK, Exit.FAILURES):
            return ended.err
        return self.run("verify", str(self.result)).out

    def remedy(self, said: str) -> Ended:
        """Do as the words say: remove what they name, and run the experiment again; of shards, merge anew."""
        for name in self.mutation.paths:
            if any(_REMOVE.search(line) and Path(name).name in line for line in said.splitlines()):
                remove(self.path / name)
        again = [self.run(*args) for args in self.scene.again]
        if self.name == "shards":
            shutil.rmtree(self.result, ignore_errors=True)
            again.append(self.run(*self.scene.ends))
        return again[-1]

    def is_well(self, ended: Ended) -> bool:
        """Whether it has ended, and `verify` finds nothing; the result is then the right one."""
        if ended.code != Exit.OK or self.run("verify", str(self.result)).code != Exit.OK:
            return False
        self.check_result("went on")
        return True

    def read(self) -> None:
        """Try every verb that only reads."""
        before = tree(self.path)
        for args in self.scene.reads:
            ended = self.run(*args)
            # A file that the system will not open is named.
            is_named = any(Path(name).name in ended.err for name in self.mutation.paths)
            assert ended.code != Exit.STORAGE_FAILED or is_named, ended
            assert ended.code != Exit.BAD_INPUT or ended.err.strip(), ended
            if args[0] == "verify" and ended.code == Exit.OK:
                claimed, was = record(self.path / args[1]), record(self.scene.path / args[1])
                assert not (found := differing(claimed, was)), f"verify finds nothing wrong with {found}"
        assert tree(self.path) == before, "a verb that reads has written"

    def make(self, args: tuple[str, ...]) -> None:
        """Try a verb that makes something: what is not as without the damage is said, or is unknown."""
        made, expected = make(self.path, args), plain(self.name, args)
        names = {Path(name).name for name in self.mutation.paths}
        is_named = made.code == Exit.STORAGE_FAILED and any(name in made.said for name in names)
        assert is_named or made.code in OUTCOMES[args[0]], f"{args}: {made.code}: {made.said[-1500:]}"
        # Nothing else says what the log does, so what it says is shown. So are the accounts of a grid, which are all
        # that the segments of its own hold: nobody can know of a line that is gone, and pages themselves tell of one
        # that is damaged.
        segments = [name for name in self.mutation.paths if Path(name).parent.name == "journal"]
        is_shown = self.name == "grid" and any(args[0] == "publish" or self.lacks_lines(name) for name in segments)
        if made[:2] == expected[:2] and "events.jsonl" not in names and not is_shown:
            assert made.made == expected.made, f"{args}: silently another result"

    def lacks_lines(self, name: str) -> bool:
        """Whether what is left of a file is as it was: lines of it, and perhaps one that has no end."""
        path, whole = self.path / name, (self.scene.path / name).read_bytes().splitlines(keepends=True)
        left = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        return all(line in whole for line in left if line.endswith(b"\n"))

    def mend(self, ended: Ended) -> str:
        """Put the file back, and go on."""
        if self.name == "shards":
            shutil.rmtree(self.result, ignore_errors=True)
        put_back(self.path, self.scene.path, self.mutation.paths)
        for args in (self.scene.ends, *self.scene.again, *((self.scene.ends,) if self.name == "shards" else ())):
            if self.name == "shards":
                shutil.rmtree(self.result, ignore_errors=True)
            again = self.run(*args)
            assert again.code == Exit.OK, f"the file is back, and yet: {again}"
        checked = self.run("verify", str(self.result))
        assert checked.code == Exit.OK, f"the file is back, and yet: {checked}"
        self.check_result("was mended")
        return f"code {ended.code} until the file was back"

    def check_result(self, how: str) -> None:
        """It is the result that there would have been without the damage."""
        expected = outcome(self.name)
        found = differing(facts(self.result), expected)
        assert not found, f"it {how}, and is silently other in {found}"

    def run(self, *args: str) -> Ended:
        """A verb in the damaged directory."""
        return mac_run(*args, directory=self.path, deadline_s=DEADLINE_S)


def record(run: Path) -> Facts:
    """The transcripts of a run directory, or of all combinations of a grid: not what is made again of the journal."""
    return {str(found.relative_to(run)): RunDir(path=found.parent).transcripts for found in run.rglob("transcripts")}


def differing(found: Facts, expected: Facts) -> str:
    """The facts that are not as they should be; empty where all are. Events may be missing, and none made up."""
    keys = sorted(key for key in {*found, *expected} if not _agree(key, found.get(key), expected.get(key)))
    return "; ".join(f"{key}: {str(found.get(key))[:300]} for {str(expected.get(key))[:300]}" for key in keys)


def _agree(key: str, found: object, expected: object) -> bool:
    if key.endswith("events") and isinstance(found, frozenset) and isinstance(expected, frozenset):
        return found <= expected
    return found == expected


def tree(path: Path) -> dict[str, str]:
    """Every name below `path` with what it is and holds; nothing is opened that is no file."""
    return {str(below.relative_to(path)): _digest(below) for below in sorted(path.rglob("*"))}


def _digest(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return f"link to {path.readlink()}" if stat.S_ISLNK(mode) else f"type {stat.S_IFMT(mode):o}"
