"""`mac-run init`, `check` and `import`: games of your own, what they promise, and files of others."""

from __future__ import annotations

import json
import keyword
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from mac_runner.cli.options import Verb, argument, command, commands, option, options, refuse_taken, switch
from mac_runner.cli.process import Exit, print_lines, report, say
from mac_runner.config import Written
from mac_runner.config.document import parse_document
from mac_runner.errors import ConfigError
from mac_runner.files import obstacle, read_material, read_regular
from mac_runner.printable import printable
from mac_runner.problems import dotted, suggestion
from mac_runner.registry import ENVIRONMENTS, Converter, Importer, environment_specs
from mac_runner.section import KeyPath
from mac_runner.store import Disk
from mac_runner.testing.check import CheckRequest, check

FOLDERS: Final = ("examples", "experiments")
"""What comes with the package besides code."""
_TEMPLATE: Final = "new_project"
_NAME: Final = "new_game"
"""The name of the template's game; a project has its own in its place."""
_SIZE_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Init(Verb):
    """Write a new project to the folder NAME: a game of your own, its experiment, its tests.

    The folder is made; one that holds files is refused. With --examples: write the examples and experiments that come
    with the package.

    Exit codes: 0 written, 2 bad input, 4 storage failed.
    """

    folder: Path | None = argument("[NAME]", required=False)
    example: str | None = option("Begin with an example: werewolf, negotiation, twenty_questions.", "GAME")
    examples: Path | None = option("Write all examples to DIR instead.", "DIR")

    def work(self) -> None:
        if self.folder is not None and self.examples is None:
            return init(self.folder, self.example)
        if self.folder is not None or self.examples is None:
            raise ConfigError("name the folder of a new project, or give --examples DIR")
        if self.example is not None:
            raise ConfigError("--example begins a project, so it has no effect with --examples: leave one out")
        return write_examples(self.examples)


def init(folder: Path, example: str | None) -> None:
    """Write a project whose game has the name of `folder`; with `example` its game is that one."""
    name = folder.name.replace("-", "_").replace(" ", "_")
    if keyword.iskeyword(name):
        raise ConfigError(f"{folder.name!r} cannot be the name of a game: it is a word of Python; take another")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,60}", name):
        raise ConfigError(f"{folder.name!r} cannot be the name of a game: write letters, digits and _, a letter first")
    if name in sys.stdlib_module_names or name in ("mac_runner", "pytest", *ENVIRONMENTS):
        raise ConfigError(f"{folder.name!r} is the name of a module or an environment that is here; write another name")
    template = shipped("examples") / _TEMPLATE
    files = {path.name: path for path in sorted(template.iterdir()) if path.is_file()}
    if example is not None:
        files |= {f"{_NAME}{path.suffix}": path for path in _of_example(example)}
    texts = {}
    for target, path in files.items():
        text = read_regular(path, _SIZE_BYTES_MAX).decode()
        text = re.sub(rf"\b(test_)?{path.stem if path.stem == example else _NAME}\b", rf"\g<1>{name}", text)
        texts[Path(target.replace(_NAME, name))] = text.replace("NewGame", name.title().replace("_", "")).encode()
    _write(folder, texts, ", ".join(map(str, texts)), f"{name}.yaml")


def write_examples(folder: Path) -> None:
    """Write the examples and experiments that come with the package."""
    texts: dict[Path, bytes] = {}
    for part in FOLDERS:
        root = shipped(part)
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            if path.is_file() and "__pycache__" not in path.parts and inside.parts[0] != _TEMPLATE:
                texts[part / inside] = read_regular(path, _SIZE_BYTES_MAX)
    _write(folder, texts, f"{len(texts)} files", "examples/werewolf.yaml")


def shipped(part: str) -> Path:
    """The folder of that name as it was installed, or of the source tree. Raises ConfigError where it is in neither."""
    package = Path(__file__).parents[1]
    for root in (package / "shipped", package.parent):
        if (root / part / _TEMPLATE).is_dir() or (part != "examples" and (root / part).is_dir()):
            return root / part
    raise ConfigError(f"this installation of mac_runner lacks its folder {part!r}; install the package again")


def _of_example(example: str) -> Iterator[Path]:
    """The code and the experiment of an example. Raises ConfigError naming those there are."""
    root = shipped("examples")
    known = [path.stem for path in sorted(root.glob("*.py")) if _is_game(path)]
    if example not in known:
        raise ConfigError(f"--example: there is no example {example!r}{suggestion(example, known)}")
    yield from (root / f"{example}.py", root / f"{example}.yaml")


def _is_game(path: Path) -> bool:
    experiment = path.with_suffix(".yaml")
    return experiment.is_file() and f"./{path.name}:{path.stem}".encode() in read_regular(experiment, _SIZE_BYTES_MAX)


def _write(folder: Path, texts: dict[Path, bytes], what: str, first: str) -> None:
    """Write new files below a folder, and say what they are and which of them to run first.

    Raises ConfigError where something is there already.
    """
    disk = Disk()
    if (reason := obstacle(folder)) is not None:
        raise ConfigError(f"{folder}: {reason}; name another folder")
    if disk.exists(folder) and disk.names(folder):
        raise ConfigError(f"{folder} is there already and is not empty; name another folder, or remove it")
    for parent in sorted({folder / path.parent for path in texts}):
        disk.make_directory(parent)
    for path, text in texts.items():
        disk.write_atomic(folder / path, [text])
    print_lines(f"written to {folder}: {what}", f"next: cd {shlex.quote(str(folder))} && mac-run {first}")


@dataclass(frozen=True, kw_only=True)
class Check(Verb):
    """Try whether an environment keeps what every environment promises, with random and hostile replies.

    NAME is FILE.py:name, package.module:Name, the name of an installed environment, or an experiment file. The
    environment is imported and played in processes of its own; no engine is started and nothing is written.

    Exit codes: 0 all promises are kept, 1 one is not, 2 it cannot be loaded.
    """

    target: str = argument("NAME")
    settings: tuple[str, ...] = options("A setting of the environment; may be repeated.", "KEY=VALUE")
    agents: int | None = option("How many agents take part [as many as it begins with].", "N")
    conversations: int = option("How many are played [8].", "N", 8)
    turns: int = option("No conversation has more turns [5000].", "N", 5000)
    seconds: int = option("No step takes longer [10].", "N", 10)
    policy: str | None = option("The scripted player whose replies are used [random].", "NAME")
    json: bool = switch("For programs.")

    def work(self) -> Exit:
        request = CheckRequest(
            self.target, self.settings, self.agents, self.conversations, self.turns, self.seconds, self.policy
        )
        found = check(request)
        print_lines(json.dumps(found.as_json(), indent=2) if self.json else "\n".join(found.lines()))
        return Exit.FAILURES if found.broken else Exit.OK


_CONVERTERS: Final = {name: each for spec in environment_specs().values() for name, each in spec.converters.items()}
_IMPORTERS: Final = {name: each for spec in environment_specs().values() for name, each in spec.importers.items()}
_METADATA: Final = {name: each.metadata for name, each in _CONVERTERS.items() if each.metadata}


@dataclass(frozen=True, kw_only=True)
class Import(Verb):
    """Turn files of others into ours: of a public benchmark, or an experiment of another runner.

    \b
    FORMAT, and the FILEs that it takes:
    {formats}

    A benchmark becomes the file of questions that --out names. An experiment is written there, or printed, and what it
    leaves out is listed.

    Exit codes: 0 written, also where keys are left out, 2 bad input, 4 storage failed.
    """

    format: str = argument("FORMAT", type=click.Choice([*_CONVERTERS, *_IMPORTERS]))
    files: tuple[Path, ...] = argument("FILE...", nargs=-1, required=True)
    out: Path | None = option("The file to write.", "FILE")
    metadata: Path | None = option(
        f"What else is known of the questions: {' or '.join(f'{file} ({name})' for name, file in _METADATA.items())}.",
        "FILE",
    )

    def work(self) -> None:
        if self.out is not None:
            refuse_taken(self.out, "--out")
        if self.metadata is not None and self.format not in _METADATA:
            raise ConfigError(f"--metadata: the format {self.format} takes no such file; leave it out")
        if self.format in _CONVERTERS:
            return self._questions(_CONVERTERS[self.format])
        return self._experiment(_IMPORTERS[self.format])

    def _questions(self, converter: Converter) -> None:
        """Write the questions of the files."""
        if self.out is None:
            raise ConfigError("--out: name the file of questions to write")
        known = None if self.metadata is None else (str(self.metadata), read_material(self.metadata))
        written = converter.convert({str(file): read_material(file) for file in self.files}, known)
        Disk().write_atomic(self.out, [written])
        questions = written.count(b"\n")
        print_lines(f"{self.out}: {questions} questions")

    def _experiment(self, importer: Importer) -> None:
        """Write the experiment of another runner as one of ours, or print it; list what it leaves out."""
        file, *others = self.files
        if others:
            raise ConfigError(
                f"FILE: an experiment of {self.format} is one file; leave out {', '.join(map(str, others))}"
            )
        document = parse_document(read_material(file), str(file))
        if not isinstance(document.value, dict):
            raise ConfigError(f"{file}:1: an experiment file is a mapping of sections")
        imported = importer.convert(document.value, file, Path() if self.out is None else self.out.parent)
        placed = sorted((_line(problem.path, document), problem) for problem in imported.left_out)
        left_out = [printable(f"{line}: {dotted(path)}: {text}") for line, (path, text) in placed]
        heading = [f"Imported from {file} ({self.format}); docs/from_mac_fairness.md says what became of each key."]
        heading += [_carried(len(left_out)), *(f"- line {line}" for line in left_out)]
        written = "".join(f"# {printable(line)}\n" for line in heading) + f"\n{imported.text}"
        if self.out is None:
            with report() as stream:
                stream.write(written)
        else:
            Disk().write_atomic(self.out, [written.encode()])
        for line in (*(f"{file}:{line}" for line in left_out), _carried(len(left_out))):
            say(printable(line))


def _carried(count: int) -> str:
    return f"Keys that are not carried over: {count}" if count else "All keys are carried over"


def _line(path: KeyPath, document: Written) -> int:
    """The line of a key, or of the nearest one above it."""
    return next(line for n in range(len(path), -1, -1) if (line := document.lines.get(path[:n])) is not None)


_LISTED: Final = [
    *(f"{name}: {each.files}" for name, each in _CONVERTERS.items()),
    *(f"{name}: {each.files}" for name, each in _IMPORTERS.items()),
]
VERBS: Final = {**commands(init=Init, check=Check), "import": command("import", Import, formats="\n".join(_LISTED))}
