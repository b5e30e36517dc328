"""What vLLM raises about a request, as an error with a verdict."""

from __future__ import annotations

import pytest

from mac_runner.backends.vllm.testing import ErrorClasses
from mac_runner.errors import EngineCrashedError, MacRunnerError, RequestRefusedError, TransientBackendError


class VllmError(Exception):
    """As vLLM's own of all errors."""


class ClientError(VllmError): ...


class DeadError(VllmError): ...


class GenerateError(VllmError):
    """Wraps whatever vLLM met on the way, and says nothing itself."""


ERRORS = ErrorClasses(base=VllmError, client=ClientError, dead=DeadError)


@pytest.mark.parametrize(
    ("raised", "cause", "told", "text"),
    [
        (DeadError(), None, EngineCrashedError, "vLLM's engine process has ended; it is said why"),
        (ClientError("too hot"), None, RequestRefusedError, "vLLM refuses the request: too hot"),
        (GenerateError(), ValueError("needs top_k"), RequestRefusedError, "vLLM refuses the request: needs top_k"),
        (GenerateError(), OSError("broke"), TransientBackendError, "vLLM did not answer: OSError: broke"),
        (VllmError("hm"), None, TransientBackendError, "vLLM did not answer: VllmError: hm"),
    ],
)
def test_error_says_what_is_to_be_done_and_what_happened(
    raised: Exception, cause: Exception | None, told: type[MacRunnerError], text: str
) -> None:
    with pytest.raises(MacRunnerError) as caught, ERRORS.verdicts(lambda: "it is said why"):
        raise raised from cause

    assert type(caught.value) is told
    assert str(caught.value) == text
