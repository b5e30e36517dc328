"""Checks an installed wheel: what the archives hold, and that its commands play. Takes the archives and a folder."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import metadata
from pathlib import Path

DATA = ("mac_runner/py.typed", "mac_runner/environments/town_of_salem/bots/wordings.yaml")
SOURCES = ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "docs/", "examples/", "experiments/", "tests/")
BIN = Path(sys.executable).parent


def check(is_so: bool, what: str) -> None:
    """End with what is not so."""
    if not is_so:
        sys.exit(f"the package is not as it should be: {what}")


def held_by(archives: Path) -> None:
    """What the wheel and the sdist hold."""
    (wheel,), (sdist,) = archives.glob("*.whl"), archives.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    for name in DATA:
        check(name in names, f"the wheel lacks {name}")
    check(any(name.endswith("licenses/LICENSE") for name in names), "the wheel lacks its licence")
    tops = {name.split("/")[0] for name in names}
    check(all(top.startswith("mac_runner") for top in tops), f"the wheel holds {sorted(tops)}")
    with tarfile.open(sdist) as packed:
        files = [name.partition("/")[2] for name in packed.getnames()]
    for name in SOURCES:
        check(any(file.startswith(name) for file in files), f"the sdist lacks {name}")
    check(
        not any(file.startswith((".venv", "runs/", "dist/")) for file in files), "the sdist holds what was built here"
    )


def described() -> None:
    """The metadata that an index shows."""
    found = metadata("mac_runner")
    addresses = {line.partition(",")[0] for line in found.get_all("Project-URL") or ()}
    check(addresses >= {"Homepage", "Documentation", "Issues", "Changelog"}, f"addresses are {sorted(addresses)}")
    check(found["License-Expression"] == "Apache-2.0", "the licence is not Apache-2.0")
    check("mac_runner" in (found["Author"] or found["Author-email"] or ""), "there is no author")


def run(place: Path, *command: str) -> str:
    """A command of the package, in another directory."""
    ended = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=place, capture_output=True, text=True, check=False
    )
    check(ended.returncode == 0, f"{' '.join(command)} ends with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def played(place: Path) -> None:
    """A new project and the shipped examples, without the sources."""
    place.mkdir()
    run(place, "mac-run", "--version")
    run(place, "mac-serve", "--version")
    run(place, "mac-run", "init", "--examples", "shipped")
    run(place, "mac-run", "init", "duel")
    run(place / "duel", "mac-run", "duel.yaml", "--limit", "3")
    (game,) = place.rglob("werewolf.yaml")
    run(place, "mac-run", str(game), "--limit", "3", "--out", "werewolf")
    run(place, "mac-run", "verify", "--trust", "werewolf")
    (echo,) = place.rglob("echo.yaml")
    run(place, "mac-run", str(echo), "--limit", "3", "--out", "echo")
    run(place, "python", "-c", "import mac_runner; assert len(mac_runner.open_run('echo')) == 3")


if __name__ == "__main__":
    archives, place = map(Path, sys.argv[1:])
    held_by(archives)
    described()
    played(place)
    print("the wheel installs elsewhere and plays")
