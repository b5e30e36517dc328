"""Runs for the tests of what trainers read: a learner whose tokens are recorded plays scripted opponents."""

from __future__ import annotations

from pathlib import Path

import mac_runner
from mac_runner import RunView
from mac_runner.types import JsonObject
from tests.cli.lab import Lab, experiment, scripted

HOSTILE = "</script> \ud800 \x00 \u202e =1+1 {{x}}"
"""A reply that no environment can use."""
_CODE = f"""
from random import Random
from zlib import crc32

from mac_runner import OwnBackend, FinishReason, Reply, TokenCount, TokenTrace
from mac_runner.environments.town_of_salem.bots import POLICIES
from mac_runner.types import PolicySpan

def ids(text):
    return [crc32(word.encode("utf-8", "replace")) % 50_000 for word in text.split()]

class Learner(OwnBackend):
    records_tokens = True
    answered = 0

    async def generate(self, request):
        chance = Random(request.sampling.seed)
        text = POLICIES["heuristic"](request.prompt.view, chance)
        is_odd = chance.random() < 0.2
        text = {HOSTILE!r} if is_odd else text
        prompt = ids("\\n".join(each.content for each in request.prompt.messages))
        drawn = ids(text)
        self.answered += 1
        return Reply(
            text=text,
            thinking="hm" if is_odd else None,
            finish_reason=FinishReason.LENGTH if is_odd else FinishReason.STOP,
            tokens=TokenCount(prompt=len(prompt), completion=len(drawn)),
            trace=TokenTrace(
                prompt_ids=tuple(prompt),
                completion_ids=tuple(drawn),
                logprobs=tuple(-0.25 * place for place in range(len(drawn))),
            ),
            policy=PolicySpan(self.answered // 40, self.answered // 40 + is_odd),
        )
"""


def learning(conversations: int = 2) -> JsonObject:
    """Games in which the seats of `learner` have tokens."""
    learner: JsonObject = {"backend": "./learner.py:Learner", "record_tokens": True}
    return experiment(conversations=conversations, models={"learner": learner, "bot": scripted()})


def play(directory: Path, content: JsonObject) -> RunView:
    """Play an experiment in this process; its run directory is `directory/NAME`."""
    (directory / "learner.py").write_text(_CODE, encoding="utf-8", errors="backslashreplace")
    file = directory / Lab(path=directory).write(content)
    return mac_runner.run(file, out=directory / file.stem, progress=False)
