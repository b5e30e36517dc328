"""From what vLLM puts out to a Reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mac_runner.backends.chat import with_thought
from mac_runner.backends.rendering import Rendered
from mac_runner.backends.vllm.protocols import Completion, Output
from mac_runner.errors import TransientBackendError
from mac_runner.types import FinishReason, Reply, TokenCount, TokenTrace

_REASONS: Final[Mapping[str | None, FinishReason]] = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def reply_of(output: Output, rendered: Rendered, *, is_thinking: bool, traces: bool) -> Reply:
    """The reply, which goes on with a thought that the prompt opened if it `is_thinking`.

    Raises TransientBackendError when the engine ended the request without finishing it.
    """
    completion = output.outputs[0]
    reason = _REASONS.get(completion.finish_reason)
    if reason is None:
        raise TransientBackendError(f"vLLM ended the request unfinished: {completion.finish_reason}")
    return Reply(
        text=with_thought(completion.text, is_thinking=is_thinking),
        finish_reason=reason,
        tokens=TokenCount(
            prompt=len(rendered.ids), cached=output.num_cached_tokens or 0, completion=len(completion.token_ids)
        ),
        trace=_trace(rendered, completion) if traces else None,
    )


def _trace(rendered: Rendered, completion: Completion) -> TokenTrace:
    """vLLM tells the likelihood of each token drawn, and perhaps of others; only the drawn ones' are kept."""
    pairs = zip(completion.token_ids, completion.logprobs or (), strict=True)
    return TokenTrace(
        prompt_ids=tuple(rendered.ids),
        completion_ids=tuple(completion.token_ids),
        logprobs=tuple(found[token].logprob for token, found in pairs),
    )
