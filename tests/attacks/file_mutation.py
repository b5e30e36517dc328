"""An experiment file is altered, and `--dry-run` then takes it, or refuses it in words that name the place.

It writes nothing, needs little time and memory, and quotes no library. Altered are bytes, lines and values; in place of
a value there may stand whatever YAML can spell.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import yaml

from mac_runner.cli.process import Exit
from mac_runner.types import JsonObject, JsonValue
from tests.attacks.invocation import Ended, mac_run
from tests.attacks.mutation import BYTES, TYPES, places
from tests.attacks.run_mutation import tree
from tests.attacks.strings import ATTACKS
from tests.cli.lab import ROOT

DEADLINE_S: Final = 10.0
FILE: Final = "experiment.yaml"
QUESTIONS: Final = "questions/bbq_200.jsonl"
QUESTIONS_KEPT: Final = 20
TEMPLATE: Final = "own.jinja"
TEMPLATE_TEXT: Final = "{% block system %}You are {{ agent_id }}. {{ question.question }}{% endblock %}\n"
_HOLE: Final = "a-hole-for-a-value"
_FOREIGN: Final = re.compile(
    r"pydantic|validation error|Input should|input_value|type=\w+|For further information"
    r"|jinja2\.|yaml\.|<class |0x[0-9a-f]{6}",
    re.IGNORECASE,
)
"""Words of libraries, which tell a user nothing."""
_PLACE: Final = re.compile(
    r"(?:mac-run: )?(?:(?P<file>[\w./-]+?\.(?:yaml|jsonl|jinja))(?::(?P<line>\d+))?: |\.\.\. and more)"
)

VALUES: Final = (
    *("~", "yes", "no", "0", "-1", "1.0", "1e999", ".nan", ".inf", "-.inf", "0x10", "0o7", "1_000", "12:30:45"),
    *("2001-01-01", "9" * 29, "9" * 5_000, "1.0e-400", "'1'", "''", "' '", "[]", "{}", "[[]]", "[~]", "{a: 1}"),
    *("&a [*a]", "*nobody", "&a 1", "!!python/object/apply:os.system [id]", "!!binary aGVsbG8=", "!secret x"),
    *("[" * 200 + "]" * 200, "{a: " * 100 + "1" + "}" * 100, "[" + "1, " * 20_000 + "1]"),
    *("'" + "x" * 100_000 + "'", '"\\ud800"', '"\\0"', '"\\x1b[2J"', "'\u202e\u2028'", "'\U0001f600'", "'ﬁ'", "'İ'"),
    *("../../etc/passwd", "/dev/zero", "/dev/full", ".", "/", "a/../b", "'a b'", "con", "-x", "'{}'", "'%s'", "$HOME"),
    *("http://[::1", "http://user:pass@h/v1", "file:///etc/passwd", "http://h:99999/v1", "//h", "http://"),
    *("'{{ 9**9**9 }}'", "'{% for i in range(10**9) %}x{% endfor %}'", "'{{ lipsum() }}'", "'{agent_id}'", "'{'"),
    *("scripted", "vllm", "openai", "nano", "ollama", "discussion", "town_of_salem", "echo", "heuristic", "embedded"),
)
"""Whatever may stand in place of a value."""


@cache
def sources() -> tuple[str, ...]:
    """The experiment files of the project, and one that has a section of each kind."""
    return (
        *(path.read_text() for path in sorted((ROOT / "experiments").glob("*.yaml"))),
        yaml.safe_dump(_everything()),
    )


def _everything() -> JsonObject:
    sampling: JsonObject = {"temperature": 0.5, "top_p": 0.9, "stop": ["END"]}
    person: JsonObject = {"role": "participant", "persona": "nurse", "demographics": {"age": 30}}
    agent: JsonObject = {**person, **sampling, "model": "m", "role_specific_config": {"visible_to": ["a", "b"]}}
    return {
        "experiment_metadata": {"experiment_name": "all"},
        "seed": 1,
        "profile": "embedded",
        "conversation_config": {"environment": "discussion", "conversations": 2},
        "discussion": {
            "questions": [QUESTIONS],
            "max_rounds": 3,
            "routing_strategy": {"topology": "groups", "groups": {"g": ["a", "b"]}, "channels": {"c": ["a", "b"]}},
            "stopping": {"on_consensus": True, "stable_rounds": 2, "min_rounds": 1},
            "answers": {"near_match_threshold": 90.0},
            "prompt": {"choice_format": "bullet", "template_file": TEMPLATE},
        },
        "_grid": {"sweep": {"seed": [1, 2]}, "zip": {"z": [{"discussion.max_rounds": n} for n in (1, 2)]}},
        "retry_config": {"max_retries": 1, "backoff_s": 0.5},
        "model_definitions": {
            "m": {"backend": "scripted", "scripted_config": {"policy": "discussant"}, "latency": {"prefill_ms": 1}},
            "o": {"backend": "openai", "openai_config": {"model": "x", "base_urls": ["http://h/v1"], "timeout_s": 5}},
        },
        "agent_definitions": [{"agent_id": name, **agent} for name in ("a", "b")],
        "profiles": {"two": {"seed": 3, "model_definitions": {"m": {"backend": "scripted"}}}},
    }


_ODD: Final[tuple[JsonValue, ...]] = (None, True, 0, -1, 1.5, 10**20, "x", [], {}, [1], {"a": 1}, "a, b")
Change: TypeAlias = Callable[[str, Random], bytes]


def _bytes(text: str, dice: Random) -> bytes:
    data = text.encode()
    for _ in range(dice.choice([1, 1, 2, 5])):
        data = dice.choice([*BYTES.values()])(data, dice)
    return data


def _values(text: str, dice: Random) -> bytes:
    """Values and keys take other places, are left out, or have other types."""
    content: JsonObject = yaml.safe_load(text)
    for _ in range(dice.choice([1, 1, 2, 4])):
        found = places(content)
        if not found:
            break
        (holder, key), (other, twin) = dice.choice(found), dice.choice(found)
        match dice.randrange(5):
            case 0:
                del holder[key]
            case 1:
                holder[key] = _copy(other[twin])
            case 2 if isinstance(holder, dict):
                holder[dice.choice([f"{key}s", f"{key}_", f"{key}x", str(twin)])] = holder.pop(key)
            case 3:
                holder[key] = dice.choice(_ODD)
            case _:
                holder[key] = [_copy(holder[key])]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()


def _copy(value: JsonValue) -> JsonValue:
    copied: JsonValue = yaml.safe_load(yaml.safe_dump(value))
    return copied


def _tokens(text: str, dice: Random) -> bytes:
    """In place of a value there stands something that YAML can spell."""
    content: JsonObject = yaml.safe_load(text)
    holder, key = dice.choice(places(content))
    holder[key] = _HOLE
    words = VALUES if dice.random() < 0.8 else tuple(_quoted(word) for word in ATTACKS.values())
    written = yaml.safe_dump(content, sort_keys=False).replace(_HOLE, dice.choice(words))
    return written.encode("utf-8", "surrogatepass")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


CHANGES: Final[dict[str, Change]] = {"bytes": _bytes, "values": _values, "tokens": _tokens}


def play(seed: int) -> str:
    """Alter a file as the dice of `seed` say; what came of it."""
    dice = Random(seed)
    source = sources()[seed % len(sources())]
    kind = dice.choice([*CHANGES])
    with TemporaryDirectory() as name:
        directory = Path(name)
        data = CHANGES[kind](source, dice)
        (directory / FILE).write_bytes(data)
        _lay_out(directory, dice if dice.random() < 0.1 else None)
        if dice.random() < 0.02:
            kind, path = dice.choice([*TYPES]), directory / dice.choice([FILE, QUESTIONS, TEMPLATE])
            TYPES[kind](path, dice)
        before = tree(directory)
        profile = ("--profile", "embedded") if dice.random() < 0.8 else ()
        try:
            ended = mac_run(FILE, "--dry-run", *profile, directory=directory, deadline_s=DEADLINE_S)
            check(ended)
            assert tree(directory) == before, "it wrote something"
        except AssertionError as fault:
            raise AssertionError(f"{kind}: {fault}\nseed {seed}, altered: {altered(source, data)}") from None
    return f"{kind}: code {ended.code}"


def _lay_out(directory: Path, dice: Random | None) -> None:
    """The files that an experiment reads, altered too where there are dice for it."""
    (directory / "questions").mkdir()
    lines = (ROOT / "experiments" / QUESTIONS).read_bytes().splitlines(keepends=True)
    files = {QUESTIONS: b"".join(lines[:QUESTIONS_KEPT]), TEMPLATE: TEMPLATE_TEXT.encode()}
    for name, data in files.items():
        changed = data if dice is None else dice.choice([*BYTES.values()])(data, dice)
        (directory / name).write_bytes(changed)


def check(ended: Ended) -> None:
    """It ended with 0 or 2; with 2 each line says in which file and where, in words of ours."""
    assert ended.code in (Exit.OK, Exit.BAD_INPUT), ended
    if ended.code == Exit.OK:
        return
    assert not ended.out, ended
    lines = ended.err.splitlines()
    assert lines, "not a word of why"
    for line in lines:
        assert len(line) < 5_000, f"a line of {len(line)} characters"
        assert line.isprintable(), f"what a terminal would act on: {line!r}"
        found = _PLACE.match(line)
        assert found, f"no file is named: {line}"
        assert not _FOREIGN.search(_unquoted(line)), f"words of a library: {line}"
        is_whole = "cannot be read" in line or "larger than" in line or not found["file"]
        assert is_whole or found["line"] or found["file"] != FILE, f"no line is named: {line}"


def _unquoted(line: str) -> str:
    """A line without what it quotes from the file."""
    return re.sub(r"\"[^\"]*\"?|'[^']*'|found .*?;", "", line)


def altered(source: str, data: bytes) -> str:
    """The lines of an altered file that the file does not have, to be read in a report."""
    had = set(source.splitlines()) | set(yaml.safe_dump(yaml.safe_load(source), sort_keys=False).splitlines())
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if line not in had]
    return " / ".join(line[:160] for line in lines[:6])
