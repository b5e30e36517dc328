"""`mac-run init`: a new project with a game of your own, or the examples that come with the package."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mac_runner.cli.process import Exit, report
from mac_runner.errors import ConfigError
from mac_runner.files import obstacle, read_regular
from mac_runner.problems import suggestion
from mac_runner.registry import ENVIRONMENTS
from mac_runner.store import Disk

FOLDERS: Final = ("examples", "experiments")
"""What comes with the package besides code."""
_TEMPLATE: Final = "new_project"
_NAME: Final = "new_game"
"""The name of the template's game; a project has its own in its place."""
_SIZE_BYTES_MAX: Final = 16 << 20


def init(folder: Path, example: str | None) -> Exit:
    """Write a project whose game has the name of `folder`; with `example` its game is that one."""
    name = folder.name.replace("-", "_").replace(" ", "_")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,60}", name) or keyword.iskeyword(name):
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
    _write(folder, texts)
    _print(
        f"written to {folder}: {', '.join(map(str, texts))}",
        f"next: cd {shlex.quote(str(folder))} && mac-run {name}.yaml",
    )
    return Exit.OK


def write_examples(folder: Path) -> Exit:
    """Write the examples and experiments that come with the package."""
    texts: dict[Path, bytes] = {}
    for part in FOLDERS:
        root = shipped(part)
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            if path.is_file() and "__pycache__" not in path.parts and inside.parts[0] != _TEMPLATE:
                texts[part / inside] = read_regular(path, _SIZE_BYTES_MAX)
    _write(folder, texts)
    _print(
        f"written to {folder}: {len(texts)} files",
        f"next: cd {shlex.quote(str(folder))} && mac-run examples/werewolf.yaml",
    )
    return Exit.OK


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


def _write(folder: Path, texts: dict[Path, bytes]) -> None:
    """Write new files below a folder. Raises ConfigError where something is there already."""
    disk = Disk()
    if (reason := obstacle(folder)) is not None:
        raise ConfigError(f"{folder}: {reason}; name another folder")
    if disk.exists(folder) and disk.names(folder):
        raise ConfigError(f"{folder} is there already and is not empty; name another folder, or remove it")
    for parent in sorted({folder / path.parent for path in texts}):
        disk.make_directory(parent)
    for path, text in texts.items():
        disk.write_atomic(folder / path, [text])


def _print(*lines: str) -> None:
    with report() as stream:
        stream.write("\n".join(lines) + "\n")
