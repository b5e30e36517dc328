"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.openai.answer import Answer, SendingError, Standing, model_names, read_answer, read_completion
from mac_runner.backends.openai.backend import OpenaiBackend
from mac_runner.backends.openai.connection import HTTP_BODY_BYTES_MAX, HTTP_GZIP_MEMBERS_MAX, unpacked
from mac_runner.backends.openai.data_plane import DataPlane
from mac_runner.backends.openai.endpoints import (
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
from mac_runner.backends.openai.request_body import BodyWriter
from mac_runner.backends.openai.stall import Looks, Verdict, tokens_counted, verdict
from mac_runner.backends.openai.vllm_weights import VllmWeights
from mac_runner.backends.openai.weights import Sent, ServerWeights
