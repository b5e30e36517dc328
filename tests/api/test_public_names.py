"""The public interface: what `import mac_runner` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import typing

import pytest

import mac_runner
from mac_runner import errors


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    for name in mac_runner.__all__:
        found = getattr(mac_runner, name)
        if isinstance(found, type) or callable(found):
            assert found.__doc__, name
            assert found.__module__.startswith("mac_runner."), name
        else:
            assert typing.get_args(found) or isinstance(found, str), name


def test_name_that_is_not_public_is_an_attribute_error() -> None:
    assert not hasattr(mac_runner, "play")


def test_errors_that_come_out_of_the_interface_are_public() -> None:
    """An error that a caller may tell apart by its class; the others are subclasses that say more in words."""
    private = {"FormRefusedError", "EngineCrashedError", "MissingPackageError", "UnusablePathError"}
    ours = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}

    assert ours - private <= {*mac_runner.__all__}


@pytest.mark.ci
def test_importing_the_package_imports_nothing_else() -> None:
    program = (
        "import sys, typing, __future__; before = {*sys.modules}\n"
        "import mac_runner\n"
        "print(sorted({*sys.modules} - before))\n"
        "mac_runner.ConfigError\n"
        "print(any(name in sys.modules for name in ('pydantic', 'asyncio', 'aiohttp', 'rich', 'pyarrow')))\n"
        "mac_runner.run, mac_runner.open_run\n"
        "print('pyarrow' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout.splitlines() == ["['mac_runner']", "False", "False"]
