"""DifferenceAwareness: where groups should be treated differently, and where alike (A. Wang et al., ACL 2025).

Each benchmark of the suite is a pickle of two lists, of `different` and `equal` questions, of `[question, answer,
scenario]`; the three choices are in the question's text. A pickle is a program, so these are not run: opcodes are
checked against those that the release has, and the two names that it looks up, a scalar of NumPy and its type, are
stand-ins that make plain texts and numbers. JSON of the same two lists is read as well.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from typing import Final, NoReturn

from mac_runner.environments.discussion.questions import Choice, Question, QuestionType
from mac_runner.environments.discussion.reading.signs import plain
from mac_runner.types import JsonObject, JsonValue

CONDITIONS: Final = ("different", "equal")
NEUTRAL: Final = "C"
_IDS: Final = "ABC"
_SPLIT: Final = re.compile(r"([DN][1-4])(?![0-9A-Za-z])")
# Some questions of N3 have (1) in the place of (a).
_LABELS: Final = re.compile(r"\((?:a|1)\)(.*)\(b\)(.*)\(c\)(.*)", re.DOTALL)
_OPCODES: Final = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "EMPTY_LIST", "APPEND", "APPENDS"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE", "LONG1"),
        *("SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "BININT", "BININT1", "BININT2"),
        *("STACK_GLOBAL", "REDUCE", "BUILD"),
    }
)


def difference_awareness_lines(files: Mapping[str, bytes]) -> Iterator[tuple[str, JsonObject | ValueError]]:
    """For every question its place, and what is known of it or why it cannot be read."""
    for name, data in files.items():
        try:
            parts = _parts(data)
            split = _SPLIT.search(PurePath(name).stem)
            if split is None:
                raise ValueError("its name does not say which benchmark it is; name it as in the release: D1_1k.pkl")
        except ValueError as fault:
            yield name, fault
            continue
        for condition, rows in zip(CONDITIONS, parts, strict=True):
            for number, row in enumerate(rows):
                place = f"{name}:{condition}:{number}"
                if isinstance(row, list) and len(row) == 3:
                    question, answer, scenario = row
                    yield (
                        place,
                        {
                            "split": split[1],
                            "condition": condition,
                            "number": number,
                            "question": question,
                            "answer": answer,
                            "scenario": scenario,
                        },
                    )
                else:
                    yield place, ValueError(f"found {row!r:.80}; allowed: a list of question, answer and scenario")


def difference_awareness_question(line: JsonObject, _file: str) -> Question:
    """A line of `difference_awareness_lines` as a question. Raises ValueError."""
    split, condition, number = line["split"], line["condition"], line["number"]
    text, choices = _asked(line["question"])
    answer, scenario = line["answer"], line["scenario"]
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(_IDS):
        raise ValueError(f"answer: found {answer!r:.80}; allowed: 0, 1 or 2")
    if isinstance(scenario, bool) or not isinstance(scenario, int | str) or not str(scenario).strip():
        raise ValueError(f"scenario: found {scenario!r:.80}; allowed: a number or a word")
    is_different = condition == "different"
    if is_different and _IDS[answer] == NEUTRAL:
        raise ValueError("answer: found 2; a question in which groups differ has the answer 0 or 1")
    metadata: JsonObject = {"split": split, "condition": condition, "scenario": scenario, "neutral": NEUTRAL}
    if not is_different and _IDS[answer] != NEUTRAL:
        # Of equal questions, normative benchmarks say which wrong answer names the marginalized group.
        metadata["marginalized"] = _IDS[answer]
    return Question(
        question_id=f"difference_awareness_{split}_{condition}_{number}".lower(),
        question_type=QuestionType.MULTIPLE_CHOICE,
        question=text,
        choices=choices,
        correct_answer_id=_IDS[answer] if is_different else NEUTRAL,
        source_dataset="DifferenceAwareness",
        source_id=f"{split}-{condition}-{number}",
        source_metadata=metadata,
    )


def _asked(text: JsonValue) -> tuple[str, tuple[Choice, ...]]:
    """The question, and the choices that its text lists."""
    found = _LABELS.search(text) if isinstance(text, str) else None
    if not isinstance(text, str) or found is None or not text[: found.start()].strip():
        raise ValueError(f"question: found {text!r:.80}; allowed: a text that ends in (a) … (b) … (c) …")
    texts = [part.strip() for part in found.groups()]
    if len({plain(each) for each in texts}) < len(texts):
        # Four of N2 differ in a sign alone. They are part of the suite, so their labels distinguish them.
        texts = [f"({label}) {each}" for label, each in zip("abc", texts, strict=True)]
    choices = (Choice(id=each, text=part) for each, part in zip(_IDS, texts, strict=True))
    return text[: found.start()].strip(), tuple(choices)


def _parts(data: bytes) -> tuple[list[JsonValue], list[JsonValue]]:
    """The two lists of a file. Raises ValueError."""
    value = _unpickled(data) if data.startswith(b"\x80") else _json(data)
    match value:
        case [list() as different, list() as equal]:
            return different, equal
        case _:
            raise ValueError(f"found {value!r:.80}; allowed: two lists, of different and of equal questions")


def _json(data: bytes) -> object:
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("is no pickle of the release, and no JSON of its two lists") from None
    return value


def _unpickled(data: bytes) -> object:
    """What a pickle of the release holds. Raises ValueError for any other one."""
    try:
        for opcode, _argument, place in pickletools.genops(data):
            if opcode.name not in _OPCODES:
                raise ValueError(f"byte {place} is {opcode.name}, which no pickle of the release has")
        value: object = _Unpickler(io.BytesIO(data)).load()
    except ValueError as fault:
        raise ValueError(f"is no pickle of the release: {fault}") from None
    except _BROKEN as fault:
        raise ValueError(f"is no pickle of the release: {type(fault).__name__}: {fault}") from None
    return value


_BROKEN: Final = (
    *(pickle.UnpicklingError, EOFError, ArithmeticError, AttributeError, BufferError, ImportError, LookupError),
    *(MemoryError, RecursionError, TypeError),
)
"""What loading a broken pickle raises besides ValueError."""


class _Type:
    """A stand-in for `numpy.dtype`: its name, such as `i8` or `U12`, and its state, which begins with its order."""

    def __init__(self, name: object, *_flags: object) -> None:
        self.name = str(name)
        self.is_big = False

    def __setstate__(self, state: object) -> None:
        self.is_big = isinstance(state, tuple) and len(state) > 1 and state[1] == ">"


def _scalar(kind: object, data: object) -> str | int:
    """A stand-in for a scalar of NumPy: the text or whole number that its bytes are."""
    if not isinstance(kind, _Type) or not isinstance(data, bytes):
        raise ValueError("a scalar of NumPy is none")
    if kind.name.startswith("U"):
        return data.decode("utf-32-be" if kind.is_big else "utf-32-le").rstrip("\0")
    if kind.name.startswith("i"):
        return int.from_bytes(data, "big" if kind.is_big else "little", signed=True)
    raise ValueError(f"{kind.name} is no type of a text or a whole number")


_STAND_INS: Final[Mapping[tuple[str, str], Callable[..., object]]] = {
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
}


class _Unpickler(pickle.Unpickler):
    """Looks up nothing but the stand-ins, so that loading runs no code of the file's choosing."""

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        """One of the stand-ins."""
        return _STAND_INS.get((module, name)) or _refuse(f"{module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        """Nothing lies outside the file."""
        _refuse(f"what lies elsewhere ({pid!r:.40})")


def _refuse(what: str) -> NoReturn:
    raise ValueError(f"it asks for {what:.80}, which no pickle of the release does")
