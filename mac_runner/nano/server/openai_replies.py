"""What became of a job → OpenAI's objects. Pure.

With `return_token_ids` a choice also has the tokens and the version of the weights that made the first of them: all
that training needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mac_runner.nano.outputs import Delta, TokenLogprob, TrainingSample
from mac_runner.nano.server.refusals import Refusal

JsonObject = dict[str, object]
Spell = Callable[[int], str]
LOGPROB_MIN = -9999.0
"""What OpenAI writes for a token that cannot come; JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all objects of one answer begin with. `spell` writes a token; `logprobs` and `token_ids`: whether told."""

    id: str
    created: int
    model: str
    is_chat: bool
    spell: Spell
    logprobs: bool = False
    token_ids: bool = False

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self, prompts: Sequence[tuple[int, ...]], samples: Sequence[TrainingSample]) -> JsonObject:
        """The answer in one piece; the samples of each prompt are consecutive."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        body = self._head(kind) | {"choices": [self._choice(index, sample) for index, sample in enumerate(samples)]}
        if self.is_chat and self.token_ids:
            body["prompt_token_ids"] = list(prompts[0])
        return body | {"usage": usage(prompts, samples)}

    def num_chars(self, delta: Delta) -> int:
        """How much further the next piece begins than this one, by `text_offset`; 0 where that is not told."""
        return sum(len(self.spell(each)) for each in delta.token_ids) if self.logprobs and not self.is_chat else 0

    def chunk(self, index: int, delta: Delta, *, is_first: bool, text_offset: int = 0) -> JsonObject:
        """A piece of a stream, which begins so many characters after the prompt."""
        sample = delta.sample
        choice: JsonObject = {"index": index, "finish_reason": None if sample is None else sample.finish_reason}
        if self.is_chat:
            choice["delta"] = {**({"role": "assistant"} if is_first else {}), "content": delta.text}
        else:
            choice["text"] = delta.text
        choice["logprobs"] = self._logprobs(delta.token_ids, delta.logprobs, delta.top_logprobs, text_offset)
        if self.token_ids:
            choice["token_ids"] = list(delta.token_ids)
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._head(kind) | {"choices": [choice]}

    def last_chunk(self, prompts: Sequence[tuple[int, ...]], samples: Sequence[TrainingSample]) -> JsonObject:
        """The end of a stream that counts its tokens."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._head(kind) | {"choices": [], "usage": usage(prompts, samples)}

    def _choice(self, index: int, sample: TrainingSample) -> JsonObject:
        choice: JsonObject = {"index": index, "finish_reason": sample.finish_reason}
        choice["stop_reason"] = sample.stop_reason
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": sample.text or "", "refusal": None}
        else:
            choice["text"] = sample.text or ""
        choice["logprobs"] = self._logprobs(sample.completion_tokens, sample.logprobs, sample.top_logprobs or ())
        if self.token_ids:
            choice |= {"token_ids": list(sample.completion_tokens), "weight_version": sample.weight_version}
            if not self.is_chat:
                choice["prompt_token_ids"] = list(sample.prompt_tokens)
        return choice

    def _logprobs(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        tops: Sequence[Sequence[TokenLogprob]],
        text_offset: int = 0,
    ) -> JsonObject | None:
        if not self.logprobs:
            return None
        rows = list(zip(token_ids, logprobs, tops or [()] * len(token_ids), strict=True))
        if self.is_chat:
            return {"content": token_rows(rows, self.spell), "refusal": None}
        words = [self.spell(token_id) for token_id, _, _ in rows]
        return {
            "tokens": words,
            "token_logprobs": [_finite(logprob) for _, logprob, _ in rows],
            "top_logprobs": [self._by_spelling(top) for _, _, top in rows],
            "text_offset": list(accumulate(map(len, words), initial=text_offset))[:-1],
        }

    def _by_spelling(self, top: Sequence[TokenLogprob]) -> dict[str, float]:
        """Of tokens that are spelt alike the likeliest, which comes first."""
        found = dict[str, float]()
        for each in top:
            found.setdefault(self.spell(each.token_id), _finite(each.logprob))
        return found


def token_rows(rows: Sequence[tuple[int, float, Sequence[TokenLogprob]]], spell: Spell) -> list[JsonObject]:
    """Tokens one by one, as chat completions tell them."""
    return [
        _token(token_id, logprob, spell)
        | {"top_logprobs": [_token(each.token_id, each.logprob, spell) for each in top]}
        for token_id, logprob, top in rows
    ]


def usage(prompts: Sequence[tuple[int, ...]], samples: Sequence[TrainingSample]) -> JsonObject:
    """The tokens counted: each prompt once, however many completions it has."""
    num_prompt = sum(map(len, prompts))
    num_completion = sum(len(sample.completion_tokens) for sample in samples)
    # Samples of one prompt find what the first of them computed, so the first tells what was there before.
    num_cached = sum(sample.num_cached_tokens for sample in samples if sample.sample_index == 0)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }


def error_body(refusal: Refusal) -> JsonObject:
    """An error as OpenAI's clients read it."""
    told = {"message": refusal.message, "type": refusal.kind, "param": refusal.field, "code": refusal.code}
    return {"error": told}


def model_object(name: str, created: int) -> JsonObject:
    """An entry of the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "nano"}


def _token(token_id: int, logprob: float, spell: Spell) -> JsonObject:
    text = spell(token_id)
    # A token may be a part of a character, which no text can show.
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": _finite(logprob), "bytes": known}


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_MIN)
