"""Transformers: `generate` with a configuration that touches no logits."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteriaList
from transformers.utils import logging

from benchmarks.nano_peers.setting import Setting
from benchmarks.nano_peers.timing import Prompts, Run, Stopwatch


class Transformers:
    """A model with torch's attention."""

    name = "transformers"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        logging.disable_progress_bar()
        loaded = AutoModelForCausalLM.from_pretrained(
            setting.directory, dtype=setting.torch_dtype, attn_implementation="sdpa"
        )
        self._model = loaded.eval()

    def run(self, prompts: Prompts, num_new: int) -> Run:
        """Prompts of one length, so without padding."""
        config = GenerationConfig(max_new_tokens=num_new, min_new_tokens=num_new, do_sample=False, pad_token_id=0)
        watch = Stopwatch(self._setting.clock)
        with torch.inference_mode():
            found = self._model.generate(
                torch.tensor(prompts),
                attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.long),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([_Telling(watch)]),
            )
        return watch.stop(found[:, len(prompts[0]) :].tolist())

    def close(self) -> None:
        """Do nothing: it holds only memory, which the garbage collector frees."""


class _Telling:
    """Notifies a stopwatch of every token, and stops nothing."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        """No row is done."""
        self._watch.step(len(input_ids))
        return torch.zeros(len(input_ids), dtype=torch.bool)
