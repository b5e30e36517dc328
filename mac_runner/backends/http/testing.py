"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.dialects.anthropic import DECLINED, AnthropicDialect
from mac_runner.backends.dialects.openai import OpenaiDialect, read_completion
from mac_runner.backends.http.answer import CANARY, Answer, Dialect, SendingError, Standing, page_of, read_answer
from mac_runner.backends.http.backend import HttpBackend
from mac_runner.backends.http.client import HTTP_BODY_BYTES_MAX, HTTP_GZIP_MEMBERS_MAX, unpacked
from mac_runner.backends.http.data_plane import DataPlane
from mac_runner.backends.http.endpoints import (
    CANARY_S_MAX,
    ENDPOINT_REST_S,
    ENDPOINT_REST_S_MAX,
    ENDPOINT_SAY_INTERVAL_S,
    ENDPOINT_STRIKES_MAX,
    Endpoint,
    EndpointLog,
    Endpoints,
    Onward,
)
from mac_runner.backends.http.stall import Looks, Verdict, tokens_counted, verdict
from mac_runner.backends.http.weights import Sent, ServerWeights, VllmWeights
