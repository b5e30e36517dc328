"""The backend where its packages are missing: said before anything is touched, and without loading them."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from mac_runner.backends import nano as installed
from mac_runner.errors import ConfigError


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: the tests on the engine are left out")
def test_engine_is_installed() -> None:
    installed.check_installed("m")


def test_what_is_looked_for_is_what_the_extra_installs() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=\[]", each)[0] for each in project["optional-dependencies"]["nano"]}

    # Those are for `mac-serve`, and for token traces.
    assert set(installed.NEEDED) == names - {"fastapi", "prometheus_client", "uvicorn", "pyarrow"}


def test_missing_package_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "NEEDED", ("json", "no_such_package"))

    with pytest.raises(ConfigError, match=r"no_such_package, .*\[nano\]") as caught:
        installed.check_installed("m")

    assert caught.value.key == ("model_definitions", "m", "backend")
