"""What a model writes is read on the event loop, so the longest reply there is costs no more than a few passes over it.

The unit is a plain loop of Python over as many characters, measured beside each run, because machines differ: it is
about 2 ms. A parser that takes quadratic time takes hundreds of units.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial

import pytest

from mac_runner.backends.testing import Answer, Redactor, SendingError, error_body_of, read_answer
from mac_runner.environments.discussion.testing import (
    ANSWER_CHARS_MAX,
    Choice,
    DiscussionEnvironment,
    Matcher,
    read_fields,
    words,
)
from mac_runner.environments.testing import SPEECH_CHARS_MAX, after_thoughts, defuse, disarm, scan
from mac_runner.environments.town_of_salem.testing import ACTS, MENDED_CHARS_MAX, extract, observe, read
from mac_runner.plan import plan_tasks
from mac_runner.types import REPLY_CHARS_MAX, FinishReason, Prompt, Reply, Task
from tests.attacks.test_words import view_for
from tests.environments.discussion.table import agent, talk
from tests.environments.town_of_salem.table import ELEVEN, Table
from tests.faults.tier import one_in, step_of
from tests.sim.openai_run import dialect_of
from tests.sim.requests import request

pytestmark = pytest.mark.nightly

PASSES_MAX = 80
REDACTOR = Redactor("sk-0123456789abcdef")
ASKED, DIALECT, NOW = request(), dialect_of(), partial(datetime.now, UTC)
TRIALS = 20

PIECES = (
    *('"', "'", "`", "```", "{", "}", "[", "]", "\\", '\\"', "\\u", "<", ">", "</"),
    *"():,=-_* \n\t\r\x00\u2028\u202e\u0301\ufdfa\u0130ß🙂“0",
    *("9.", "1. ", "<think>", "</think>", "<think></think>", "<speak>", "<speak ", '<speak to="', "</speak>"),
    *("<vote>Abel</vote>", "<tool_request>", "<|", "[INST]", "Abel ", "Abel, ", "I checked Abel ", "I am the real "),
    *("but ", "very ", "a ", "I ", "N1 ", "Abel and ", "Abel is really "),
    *("not ", "Answer: ", "answer: B\n", "the my ", "A or B ", "x" * 79 + "\n", ">" * 79 + "\n", "\n ", "? ", "// "),
    *('{"', '{"a":', '{"a":"', '"}', '",', '":', '" :', '"\n', '("\n', '"0', '\n"', "\\n}", '{"answer":"A"}', '{"a":['),
    *("[1,", "{}", "[]", "true ", "-1e", '"a" ', "A. ", "A) ", "***\n", "Abel\n", "\u00e9", '""', "''", "/*", ";"),
    *("<|channel|>", "<|channel|>final<|message|>", "analysisassistantfinal"),
    *("\\boxed{", "\\boxed{A}", "\\text{", "<answer>", "<answer>A</answer>", "</answer>", '{"answer":{'),
    *('{"a":{"answer":"A"}}', "final answer: A\n", "final answer\n", "the abcd of ", "A's ", "so the final "),
)
PREFIXES = ("", "{", '{"answer": "', "<speak>")
CHOICES = [
    Choice(id=chr(ord("A") + i), text=f"the {'abcdefghij'[i % 10] * 4} of {i}, not that " * 20) for i in range(26)
]
AGENTS = tuple(agent(name, role) for name, role in (("ann", "participant"), ("jud", "judge"), ("mod", "moderator")))

Parser = Callable[[str], object]


def hostile_texts(prefixes: Sequence[str] = PREFIXES) -> Iterator[tuple[str, str]]:
    """Every piece, over and over, up to the length of the longest reply; and JSON of them.

    At night each piece comes behind every beginning, by day behind one, another for the next piece.
    """
    for number, piece in enumerate(PIECES):
        step = step_of(len(prefixes))
        for prefix in prefixes[number % step :: step]:
            yield f"{prefix}|{piece[:12]}", (prefix + piece * REPLY_CHARS_MAX)[:REPLY_CHARS_MAX]
    for piece in one_in(4, PIECES):
        for said in ({"rationale": piece * 8_000, "answer": piece * 300}, {"act": "speak", "text": piece * 8_000}):
            yield f"{next(iter(said))}: {piece[:12]}", json.dumps(said)[: REPLY_CHARS_MAX - 1] + "}"


def parsers() -> dict[str, Parser]:
    """Each reads a text as it is read when a model wrote it."""
    matcher = Matcher(CHOICES, "letters_dot", threshold=60, margin=6)
    table = Table(ELEVEN)
    view = view_for(table, 0)
    fields = ("answer", "rationale", "to_the_team")

    def matched(text: str) -> object:
        words.cache_clear()
        return matcher.match(text[:ANSWER_CHARS_MAX])

    def defused(text: str) -> object:
        defuse.cache_clear()
        return defuse(text)

    def answered(text: str) -> object:
        message = {"content": text, "reasoning_content": text}
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        return read_answer(Answer(status=200, body=body), ASKED, DIALECT, now=NOW, redactor=REDACTOR)

    def complained(text: str) -> object:
        body = text.encode(errors="replace")
        with suppress(SendingError):
            read_answer(Answer(status=200, body=body), ASKED, DIALECT, now=NOW, redactor=REDACTOR)
        return error_body_of(body, REDACTOR)

    return {
        "discussion reply": lambda text: read_fields(Reply(text=text), fields),
        "discussion reply, cut off": lambda text: read_fields(
            Reply(text=text, finish_reason=FinishReason.LENGTH), fields
        ),
        "answer among 26 choices": matched,
        "defused": defused,
        "disarmed": lambda text: disarm(text, ACTS),
        "after its thoughts": after_thoughts,
        "markup": lambda text: scan(text, ACTS),
        "act": lambda text: read(Reply(text=text), table.state, 0),
        "act of the longest reply that is mended": lambda text: read(
            Reply(text=text[: MENDED_CHARS_MAX - 1] + "}"), table.state, 0
        ),
        "claims": lambda text: extract(text[:SPEECH_CHARS_MAX], ("Abel", "Bob", "Caleb")),
        "tool": lambda text: observe(view, text, text),
        "argument of a tool": lambda text: observe(view, "get_role", text),
        "completion": answered,
        "body": complained,
    }


@cache
def seconds_max() -> float:
    """What a parser may take on this machine."""
    plain = ("It was a quiet night. " * REPLY_CHARS_MAX)[:REPLY_CHARS_MAX]
    return PASSES_MAX * seconds(lambda text: [character.isalnum() for character in text], plain, enough_s=0)


def seconds(parse: Parser, text: str, *, enough_s: float) -> float:
    """Of the processor, the best of some trials, of which a good one is enough."""
    best = float("inf")
    for _ in range(TRIALS):
        began_s = time.process_time()
        parse(text)
        best = min(best, time.process_time() - began_s)
        if best <= enough_s:
            break
    return best


def test_every_parser_of_model_text_takes_64_kb_in_a_few_passes() -> None:
    texts = dict(hostile_texts())
    extract("I am the Doctor.", ("Abel",))  # Its patterns are compiled when they are first asked for.
    slow = {}
    for name, parse in parsers().items():
        for piece, text in texts.items():
            if (spent_s := seconds(parse, text, enough_s=seconds_max() / 2)) > seconds_max():
                slow[name, piece] = round(spent_s, 3)

    assert slow == {}


def test_every_role_of_a_discussion_hears_64_kb_and_prompts_the_next_in_a_few_passes() -> None:
    experiment = talk(*AGENTS, routing_strategy={"channels": {"team": ["ann", "jud"]}})
    environment = DiscussionEnvironment(experiment)
    task = next(iter(plan_tasks(experiment, None)))
    slow = {}
    for piece, text in hostile_texts(("", '{"answer": "')):
        for place, definition in enumerate(AGENTS):
            # Each trial is a discussion of its own, for a reply changes it.
            hear = partial(heard, environment, task, place)
            if (spent_s := seconds(hear, text, enough_s=seconds_max() / 2)) > seconds_max():
                slow[definition.agent_id, piece] = round(spent_s, 3)

    assert slow == {}


def heard(environment: DiscussionEnvironment, task: Task, place: int, text: str) -> Prompt:
    discussion = environment.open(task)
    defuse.cache_clear()
    words.cache_clear()
    discussion.receive(discussion.turns()[place], Reply(text=text))
    return discussion.prompt(discussion.turns()[0])
