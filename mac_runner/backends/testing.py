"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.base import JSON_OBJECT, Form, Waiting, held, structured_outputs, uncharged
from mac_runner.backends.chat_template import (
    ChatShape,
    Conversation,
    Rendered,
    Renderer,
    Write,
    apart,
    ends_in_thought,
    merge_neighbours,
    merge_system,
    plain_text,
    probe_shape,
    renderer_of,
    renderers_for,
)
from mac_runner.backends.dialects.anthropic import DECLINED, AnthropicDialect
from mac_runner.backends.dialects.ollama import OllamaDialect
from mac_runner.backends.dialects.openai import OpenaiDialect
from mac_runner.backends.factory import build_backend
from mac_runner.backends.fleet import NANO_ARGS, filled, flag_of
from mac_runner.backends.fleet.backend import FleetBackend
from mac_runner.backends.fleet.settings import LaneAddress, ModelLanes
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
from mac_runner.backends.http.errors import (
    Meaning,
    Refusal,
    error_body_of,
    meaning_of,
    refusal_of,
    retry_after_s,
)
from mac_runner.backends.http.stall import Looks, Verdict, figures_of, verdict
from mac_runner.backends.http.weights import Sent, ServerWeights, VllmWeights
from mac_runner.backends.ollama.backend import (
    OLLAMA_PULL_SAY_INTERVAL_S,
    OLLAMA_PULL_STALL_S_MAX,
    OllamaBackend,
    certificates,
    client_of,
    described,
    follow_pull,
    missing_in,
    told,
)
from mac_runner.backends.own import OwnBackend, own_spec
from mac_runner.backends.redaction import (
    ENGINE_ERROR_CHARS_MAX,
    KEY_CHARS_MAX,
    WITHHELD,
    Redactor,
    clipped,
    key_in,
    redacting,
)
from mac_runner.backends.scripted import SPEC, ScriptedBackend, ScriptedConfig
from mac_runner.backends.vllm.backend import (
    Release,
    VllmBackend,
    argument_names,
    check_keys,
    engine_arguments,
    find_release,
    gist_of,
    objections,
    refusals,
    too_old,
)
from mac_runner.backends.vllm.child import OF_A_PROCESS, handing_on
from mac_runner.backends.vllm.library import (
    Capacity,
    EngineConfig,
    ErrorClasses,
    Tokenizer,
    cache_tokens,
    capacity_of,
    is_free_to_think,
    renderer_for,
    reply_of,
    sampling_settings,
)
from mac_runner.backends.vllm.process_logs import EngineLog, ProcessLogs, cause_in
