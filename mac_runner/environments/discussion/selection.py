"""Which questions of its files an experiment discusses: all of them, some by id, or a sample.

A sample is drawn by the experiment's seed and the ids of the questions alone. So no other setting moves it, the order
of the files plays no part, and a larger sample without strata holds the smaller one. Its questions come in the order
in which they were drawn, those of strata in turn. So the first conversations of a run are a sample as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field, GetJsonSchemaHandler, ModelWrapValidatorHandler, PrivateAttr, model_validator
from pydantic_core import CoreSchema, PydanticCustomError
from rapidfuzz import process

from mac_runner.environments.discussion.questions import QUESTIONS_MAX, Question
from mac_runner.problems import Problem, suggestion
from mac_runner.section import IDENTITY, LIST_OR_MAPPING, RUNTIME, KeyPath, Listed, Section, Text
from mac_runner.types import stable_hash

KEY: Final[KeyPath] = ("discussion", "questions")
_SMALL_STRATA_LISTED: Final = 10


class QuestionSelection(Section):
    """Files of questions, and which of these are discussed; a list of files gives all of their questions."""

    files: Annotated[Listed[Text], RUNTIME, Field(max_length=100)] = ()
    """Files of questions (JSONL), relative to the experiment file; the conversations take the questions in turn."""
    sample: Annotated[int | None, IDENTITY, Field(ge=1, le=QUESTIONS_MAX)] = None
    """How many questions are drawn, by the experiment's seed; null: all of them are taken, in the files' order."""
    stratify: Annotated[Listed[Text], IDENTITY, Field(max_length=10)] = ()
    """Keys of `source_metadata`, `source_dataset` or `question_type`: their values share the sample equally."""
    ids: Annotated[Listed[Text], IDENTITY, Field(max_length=QUESTIONS_MAX)] = ()
    """In place of a sample: the ids of the questions, in the order in which they are discussed."""

    _is_listed: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _from_list(cls, data: object, handler: ModelWrapValidatorHandler[QuestionSelection]) -> QuestionSelection:
        """A list is the files."""
        if isinstance(data, list | tuple):
            selection = handler({"files": data})
            selection._is_listed = True
            return selection
        if not isinstance(data, Mapping | cls):
            raise PydanticCustomError(LIST_OR_MAPPING, "neither a list nor a mapping")
        return handler(data)

    def file_key(self, number: int) -> KeyPath:
        """The key of a file, as it is written in the experiment file."""
        return (*KEY, number) if self._is_listed else (*KEY, "files", number)

    @property
    def is_whole(self) -> bool:
        """Whether all questions of the files are taken, in their order."""
        return self.sample is None and not self.ids


class _AlsoListed:
    """Adds the list of files to the schema of a field."""

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        reference = handler(schema)
        files = handler.resolve_ref_schema(reference)["properties"]["files"]
        return {"anyOf": [{key: part for key, part in files.items() if key != "default"}, reference]}


Selection: TypeAlias = Annotated[QuestionSelection, _AlsoListed()]
"""A field that holds a selection, or a list of files."""


def rule_problems(selection: QuestionSelection) -> Iterator[Problem]:
    """The rules between its fields that a selection breaks."""
    if not selection.files and not selection.is_whole:
        yield Problem((*KEY, "files"), "is missing; name the JSONL files that the questions are in")
    if selection.ids and selection.sample is not None:
        yield Problem((*KEY, "ids"), "is given beside sample; list the questions, or have them drawn")
    if selection.stratify and selection.sample is None:
        yield Problem((*KEY, "stratify"), "changes nothing without sample; give that too, or leave it out")
    for key, listed in (("stratify", selection.stratify), ("ids", selection.ids)):
        seen: set[str] = set()
        for place, name in enumerate(listed):
            if name in seen:
                yield Problem((*KEY, key, place), f"{name!r} is listed already; list it once")
            seen.add(name)


class SelectionError(Exception):
    """The questions of the files do not allow the selection."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = tuple(problems)


def selected(bank: Sequence[Question], selection: QuestionSelection, seed: int) -> tuple[Question, ...]:
    """The questions of `bank` that are discussed, in their order. Raises SelectionError."""
    if selection.ids:
        return _by_id(bank, selection.ids)
    if selection.sample is None:
        return tuple(bank)
    if selection.sample > len(bank):
        text = f"found {selection.sample}; the files hold {len(bank)} questions; lower it, or leave it out for all"
        raise SelectionError([Problem((*KEY, "sample"), text)])
    drawn = sorted(bank, key=lambda question: (stable_hash(seed, "sample", question.question_id), question.question_id))
    if not selection.stratify:
        return tuple(drawn[: selection.sample])
    return _in_turn(_shares(_strata(drawn, selection.stratify), selection.sample, seed))


def _by_id(bank: Sequence[Question], ids: Sequence[str]) -> tuple[Question, ...]:
    by_id = {question.question_id: question for question in bank}
    unknown = [(place, name) for place, name in enumerate(ids) if name not in by_id]
    if unknown:
        raise SelectionError([Problem((*KEY, "ids", place), _no_question(name, by_id)) for place, name in unknown])
    return tuple(by_id[name] for name in ids)


def _no_question(name: str, known: Iterable[str]) -> str:
    nearest = process.extractOne(name, tuple(known), score_cutoff=60)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    return f"there is no question {name!r} in the files{hint}"


def _strata(questions: Sequence[Question], keys: Sequence[str]) -> dict[str, list[Question]]:
    """The questions by the values that they have under `keys`, in words."""
    facts = [_facts(question) for question in questions]
    problems = []
    for place, key in enumerate(keys):
        lacking = [question.question_id for question, has in zip(questions, facts, strict=True) if key not in has]
        if len(lacking) == len(questions):
            known = dict.fromkeys(name for has in facts for name in has)
            problems.append(Problem((*KEY, "stratify", place), f"no question has a {key!r}{suggestion(key, known)}"))
        elif lacking:
            text = f"{len(lacking)} of {len(questions)} questions have no {key!r}, such as {min(lacking)}"
            problems.append(Problem((*KEY, "stratify", place), f"{text}; leave them out of the files, or the key"))
    if problems:
        raise SelectionError(problems)
    strata: dict[str, list[Question]] = {}
    for question, has in zip(questions, facts, strict=True):
        strata.setdefault(", ".join(f"{key}={has[key]}" for key in keys), []).append(question)
    return strata


def _facts(question: Question) -> dict[str, str]:
    """What a question can be stratified by, each as text; what is empty counts as missing."""
    own = {"source_dataset": question.source_dataset, "question_type": str(question.question_type)}
    found = {**(question.source_metadata or {}), **own}
    return {
        key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for key, value in found.items()
        if value not in (None, "")
    }


def _shares(strata: Mapping[str, list[Question]], sample: int, seed: int) -> list[list[Question]]:
    """The first so many questions of each stratum. What the shares leave over goes to strata by seed, one to each."""
    order = sorted(strata, key=lambda name: (stable_hash(seed, "stratum", name), name))
    share, rest = divmod(sample, len(order))
    more = [name for name in order if len(strata[name]) > share][:rest]
    if share == 0 or len(more) < rest or any(len(strata[name]) < share for name in order):
        raise SelectionError([Problem((*KEY, "sample"), _uneven(strata, sample))])
    return [strata[name][: share + (name in more)] for name in order]


def _uneven(strata: Mapping[str, list[Question]], sample: int) -> str:
    sizes = {name: len(questions) for name, questions in strata.items()}
    least, share = min(sizes.values()), sample / len(sizes)
    most = least * len(sizes) + sum(size > least for size in sizes.values())
    text = f"found {sample} for {len(sizes)} strata of equal shares"
    if sample < len(sizes):
        return f"{text}; some would have no question: raise it to at least {len(sizes)}, or stratify by fewer keys"
    small = [f"{name} ({size})" for name, size in sorted(sizes.items(), key=lambda one: one[1]) if size < share]
    hidden = f" and {len(small) - _SMALL_STRATA_LISTED} more" if len(small) > _SMALL_STRATA_LISTED else ""
    listed = "; ".join(small[:_SMALL_STRATA_LISTED])
    return f"{text}; too few questions have {listed}{hidden}: lower it to at most {most}, or stratify by fewer keys"


def _in_turn(parts: Sequence[Sequence[Question]]) -> tuple[Question, ...]:
    longest = max(len(part) for part in parts)
    return tuple(part[place] for place in range(longest) for part in parts if place < len(part))


def repetition(conversations: int, questions: int) -> str | None:
    """How often questions are discussed more than once, in words; None where each is discussed once at most."""
    if not 0 < questions < conversations:
        return None
    times, more = divmod(conversations, questions)
    each = f"each is discussed {_times(times)}" if more == 0 else f"{_counted(more)} discussed {_times(times + 1)}"
    rest = f", {questions - more} {_times(times)}" if more and times > 1 else ""
    over = f"{questions} question{'' if questions == 1 else 's'}"
    return f"{conversations} conversations over {over}: {each}{rest}"


def _counted(count: int) -> str:
    return f"{count} question is" if count == 1 else f"{count} questions are"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
