"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.backends.base import JSON_OBJECT, Form, Waiting, held, uncharged
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
from mac_runner.backends.factory import build_backend
from mac_runner.backends.http.errors import (
    Meaning,
    Refusal,
    error_body_of,
    is_busy,
    meaning_of,
    refusal_of,
    retry_after_s,
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
