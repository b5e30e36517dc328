"""The modules of nano and of its backend, which the tests of the package leave out."""

from __future__ import annotations

import pytest

from tests.test_package import NANO, check_modules, check_rooms


def test_public_names_of_a_room_are_those_listed(subtests: pytest.Subtests) -> None:
    check_rooms(NANO, subtests)


def test_module_can_be_imported_and_says_what_it_is(subtests: pytest.Subtests) -> None:
    check_modules(NANO, subtests)
