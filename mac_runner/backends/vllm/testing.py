"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.vllm.arguments import (
    Release,
    argument_names,
    check_keys,
    check_version,
    engine_arguments,
    find_release,
    gist_of,
    objections,
    refusals,
)
from mac_runner.backends.vllm.backend import VllmBackend
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
