from __future__ import annotations

import pytest

from mac_runner.backends.vllm.testing import argument_names, check_version
from mac_runner.errors import ConfigError

SOURCE = '''
class Other:
    nothing: int = 0

class EngineArgs:
    """Arguments."""
    model: str = "m"
    dtype: str = field(default="auto")
    _private: int = 0
    constant = 3

    def check(self) -> None:
        local: int = 0

class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
'''


def test_argument_names_are_the_fields_of_vllms_two_classes() -> None:
    assert argument_names(SOURCE) == {"model", "dtype", "enable_log_requests"}


@pytest.mark.parametrize("version", ["0.31.0", "0.32.1+cpu", "0.40.0", "1.0.0", "0.dev1", "of unknown version"])
def test_release_is_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.30.2", "0.9.1"])
def test_release_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=rf"vLLM {version}.* 0\.31 or newer"):
        check_version(version)
