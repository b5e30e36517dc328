"""The budgets of the package: `python -m benchmarks.house --check`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.house import exceeded, read_budgets, read_house

FILES = {
    "mac_runner/__init__.py": '"""The face."""\n\nfrom mac_runner.room.upper import up\n',
    "mac_runner/ground.py": '"""A docstring\nof two lines."""\n\nimport os\n\n# A comment.\nROOM = (\n    os.sep\n)\n',
    "mac_runner/room/upper.py": "from mac_runner import ground\n\n\ndef up() -> str:\n    return ground.ROOM\n",
    "mac_runner/environments/game/play.py": "WON = 1\n",
}
SHAPE = """
[tool.house]
code = 6
files = 4
largest = 9
chain = 3
floors = 2
rooms = {ground = 3, room = 2, "environments/game" = 1}
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_package_within_its_budgets_is_fine_and_each_figure_above_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, {**FILES, "pyproject.toml": SHAPE})
    budgets = read_budgets(tmp_path)
    assert read_house(tmp_path).figures() == budgets
    assert list(exceeded(read_house(tmp_path), budgets)) == []

    for key in budgets:
        (said,) = exceeded(read_house(tmp_path), {**budgets, key: budgets[key] - 1})
        assert said == f"{key} is {budgets[key]:,}, above its budget of {budgets[key] - 1:,}"


def test_new_room_and_circle_of_annotations_are_named(tmp_path: Path) -> None:
    typed = "if TYPE_CHECKING:\n    from mac_runner.room.upper import up\n"
    back = f"from __future__ import annotations\n\nfrom typing import TYPE_CHECKING\n\n{typed}"
    write(tmp_path, {**FILES, "mac_runner/ground.py": back, "mac_runner/attic/box.py": "BOX = 1\n"})
    said = list(exceeded(read_house(tmp_path), dict.fromkeys(("code", "files", "largest", "chain", "floors"), 99)))
    assert "rooms.attic is 1 and has no budget" in said
    (circle,) = (line for line in said if line.startswith("a circle of imports: "))
    assert {"mac_runner/ground.py", "mac_runner/room/upper.py"} <= set(circle.split(": ")[1].split(" → "))
