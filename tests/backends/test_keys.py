from __future__ import annotations

import pytest

from mac_runner.backends.testing import KEY_CHARS_MAX, key_in
from mac_runner.errors import ConfigError


@pytest.mark.parametrize(("value", "key"), [("", None), (" \n", None), ("x", "x"), (" sk-1\n", "sk-1")])
def test_key_is_what_the_variable_holds_but_for_white_space_around_it(value: str, key: str | None) -> None:
    assert key_in({"SOME_KEY": value}, "SOME_KEY") == key


def test_key_that_no_header_carries_is_refused_by_the_name_of_its_variable() -> None:
    for value in ("sk canary", "sk-\x1bcanary", "sk-cänary", "canary" * KEY_CHARS_MAX):
        with pytest.raises(ConfigError, match="SOME_KEY") as caught:
            key_in({"SOME_KEY": value}, "SOME_KEY")

        assert "nary" not in str(caught.value)


def test_longest_key_is_taken() -> None:
    assert key_in({"SOME_KEY": "k" * KEY_CHARS_MAX}, "SOME_KEY") == "k" * KEY_CHARS_MAX
