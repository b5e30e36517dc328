"""A role is one value in `roles/`: no other code of the package names one, so a new role changes no other file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mac_runner.environments import town_of_salem
from mac_runner.environments.town_of_salem.testing import ROLES, Faction

PACKAGE = Path(town_of_salem.__file__).parent
RULEBOOK = {"game/lobbies.py", "view/texts.py"}
"""The line-ups of the named lobbies, and the sentences that players read: data, which decides nothing."""
KEYS = {("record/nights.py", "jailor")}
"""Keys of transcripts."""
NAMES = {role.name for role in ROLES.values()} - {faction.title() for faction in Faction}
"""The Vampires are a faction too, and factions may be named."""
NAME = re.compile(rf"\b(?:{'|'.join(re.escape(name).replace(chr(92) + ' ', '[ _]') for name in NAMES)})s?\b", re.I)


def strings(tree: ast.Module) -> Iterator[str]:
    """The literals of a module but for its docstrings, and the names that it imports."""
    documented = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented:
            yield node.value
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield " ".join((getattr(node, "module", None) or "", *(alias.name for alias in node.names)))


def test_no_code_outside_the_roles_names_a_role() -> None:
    found = {
        (name, role.lower())
        for path in sorted(PACKAGE.rglob("*.py"))
        if (name := path.relative_to(PACKAGE).as_posix()) not in RULEBOOK and not name.startswith("roles/")
        for text in strings(ast.parse(path.read_text(encoding="utf-8")))
        for role in NAME.findall(text)
    }

    assert found == KEYS


def test_names_of_roles_are_found_in_literals_and_imports() -> None:
    code = """
from mac_runner.environments.town_of_salem.roles.serial_killer import ROLE
def lie():
    'Sheriff'
    return {'Jailor': 'vampire hunter'}.get('doctored')
"""
    named = {role.lower() for text in strings(ast.parse(code)) for role in NAME.findall(text)}

    assert named == {"serial_killer", "jailor", "vampire hunter"}
