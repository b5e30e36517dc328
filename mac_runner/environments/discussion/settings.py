"""The section `discussion`, the rules between its fields, and the files that it names.

Questions are all of its files, some by id, or a sample. A sample is drawn by the experiment's seed and the ids of the
questions alone. So no other setting moves it, the order of the files plays no part, and a larger sample without strata
holds the smaller one. Its questions come in the order in which they were drawn, those of strata in turn. So the first
conversations of a run are a sample as well.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast, get_args

from pydantic import Field, GetJsonSchemaHandler, ModelWrapValidatorHandler, PrivateAttr, model_validator
from pydantic_core import CoreSchema, PydanticCustomError
from rapidfuzz import process

from mac_runner.environments.discussion.questions import QUESTIONS_MAX, Question, read_questions, topic_question
from mac_runner.errors import ConfigError
from mac_runner.problems import MaterialError, Problem, read_named, read_template, suggestion
from mac_runner.section import (
    DIGEST_PATTERN,
    IDENTITY,
    LIST_OR_MAPPING,
    RUNTIME,
    TEMPLATE_CHARS_MAX,
    KeyPath,
    Listed,
    Name,
    Section,
    Text,
)
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


def _selection_problems(selection: QuestionSelection) -> Iterator[Problem]:
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


def _refused(problems: Iterable[Problem]) -> Exception:
    first, *more = problems
    return MaterialError(first.path, first.text, *more)


def selected(bank: Sequence[Question], selection: QuestionSelection, seed: int) -> tuple[Question, ...]:
    """The questions of `bank` that are discussed, in their order. Raises MaterialError where they do not allow it."""
    if selection.ids:
        by_id = {question.question_id: question for question in bank}
        unknown = [(place, name) for place, name in enumerate(selection.ids) if name not in by_id]
        if unknown:
            raise _refused(Problem((*KEY, "ids", place), _no_question(name, by_id)) for place, name in unknown)
        return tuple(by_id[name] for name in selection.ids)
    if selection.sample is None:
        return tuple(bank)
    if selection.sample > len(bank):
        text = f"found {selection.sample}; the files hold {len(bank)} questions; lower it, or leave it out for all"
        raise _refused([Problem((*KEY, "sample"), text)])
    drawn = sorted(bank, key=lambda question: (stable_hash(seed, "sample", question.question_id), question.question_id))
    if not selection.stratify:
        return tuple(drawn[: selection.sample])
    shares = _shares(_strata(drawn, selection.stratify), selection.sample, seed)
    return tuple(question for in_turn in zip_longest(*shares) for question in in_turn if question is not None)


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
        raise _refused(problems)
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
        raise _refused([Problem((*KEY, "sample"), _uneven(strata, sample))])
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


def repetition(conversations: int, questions: int) -> str | None:
    """How often questions are discussed more than once, in words; None where each is discussed once at most."""
    if not 0 < questions < conversations:
        return None
    times, more = divmod(conversations, questions)
    counted = "1 question is" if more == 1 else f"{more} questions are"
    each = f"{counted} discussed {_times(times + 1)}" if more else f"each is discussed {_times(times)}"
    rest = f", {questions - more} {_times(times)}" if more and times > 1 else ""
    over = f"{questions} question{'' if questions == 1 else 's'}"
    return f"{conversations} conversations over {over}: {each}{rest}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


if TYPE_CHECKING:
    from mac_runner.config import Experiment

DiscussionRole: TypeAlias = Literal["participant", "moderator", "devils_advocate", "judge"]
DISCUSSION_ROLES: Final[tuple[DiscussionRole, ...]] = get_args(DiscussionRole)

ChoiceFormat: TypeAlias = Literal[
    "bullet",
    "letters_colon",
    "letters_dot",
    "letters_parenthesis",
    "numerals_colon",
    "numerals_dot",
    "numerals_parenthesis",
    "roman_colon",
    "roman_dot",
    "roman_parenthesis",
    "none",
]


class IdentityRevealConfig(Section):
    """What the others see of an agent besides its id, and from when on; all of it hidden, they see ids only."""

    persona: Annotated[bool, IDENTITY] = False
    """Whether the others read its persona."""
    demographics: Annotated[bool, IDENTITY] = False
    """Whether the others read its demographics."""
    presence_mode: Annotated[Literal["hidden", "as_declared", "all_human", "all_ai"], IDENTITY] = "hidden"
    """As what the others see it take part: nothing, what its `if_as_human` says, a human, or an AI."""
    reveal_from_round: Annotated[int, IDENTITY, Field(ge=1, le=1000)] = 2
    """The first round in which it is seen; before it the others see ids only, so earlier answers are a baseline. Where
    nothing is shown this is 1."""

    @model_validator(mode="after")
    def _settle_reveal(self) -> IdentityRevealConfig:
        """With nothing to reveal all rounds are alike, so experiments that differ in this key alone are the same."""
        if not self.shows_something:
            self.__dict__["reveal_from_round"] = 1  # The section is frozen for its users.
        return self

    @property
    def shows_something(self) -> bool:
        """Whether anything besides ids is seen."""
        return self.persona or self.demographics or self.presence_mode != "hidden"


class RoutingStrategy(Section):
    """Who reads whose words of earlier rounds. An agent always reads its own, as far back as the others'."""

    history_rounds: Annotated[int | None, IDENTITY, Field(ge=1, le=1000)] = 1
    """How many earlier rounds an agent reads: 1 is the previous one, null all of them."""
    topology: Annotated[Literal["everyone", "ring", "star", "groups"], IDENTITY] = "everyone"
    """Who is read: everyone; its two neighbours in the order of definition; the hub (which reads all); its groups."""
    hub: Annotated[Name | None, IDENTITY] = None
    """With `star`: the agent in the middle."""
    groups: Annotated[Mapping[Name, Listed[Name]], IDENTITY] = {}
    """With `groups`: the members of each; an agent may be in several, and reads no other if it is in none."""
    channels: Annotated[Mapping[Name, Listed[Name]], IDENTITY] = {}
    """Private channels and their members, who may write to them beside what they say, and alone read them."""


class StoppingConfig(Section):
    """What ends a discussion before its last round. It ends between rounds only."""

    on_consensus: Annotated[bool, IDENTITY] = False
    """Whether it ends with a round in which all participants gave the same answer."""
    stable_rounds: Annotated[int | None, IDENTITY, Field(ge=1, le=1000)] = None
    """It ends when no participant has changed its answer for this many rounds on end; null: it does not."""
    by_judge: Annotated[bool, IDENTITY] = True
    """Whether a judge may give its verdict before the last round."""
    min_rounds: Annotated[int, IDENTITY, Field(ge=1, le=1000)] = 1
    """It goes on for this many rounds in any case."""


class AnswerConfig(Section):
    """How the answer in a reply is matched to a choice."""

    near_match_threshold: Annotated[float, IDENTITY, Field(ge=50, le=100)] = 88.0
    """How like a choice a misspelt answer has to be, out of 100."""
    near_match_margin: Annotated[float, IDENTITY, Field(ge=0, le=100)] = 6.0
    """By how much it has to be more like that choice than like any other."""


class PromptConfig(Section):
    """What prompts look like."""

    choice_format: Annotated[ChoiceFormat, IDENTITY] = "letters_dot"
    """How choices are listed: with bullets; letters, numerals or roman numerals and their punctuation; or bare."""
    choice_order: Annotated[Literal["as_given", "permuted"], IDENTITY] = "as_given"
    """The order of the choices: that of the question, or one drawn for each discussion, the same for all its agents."""
    answer_order: Annotated[Literal["rationale_first", "answer_first"], IDENTITY] = "rationale_first"
    """Which of the two a reply begins with."""
    identity_place: Annotated[Literal["system", "last"], IDENTITY] = "system"
    """Where an agent reads who it is: in the system message, or behind what was said, where it costs less cache."""
    template_file: Annotated[Text | None, RUNTIME] = None
    """A Jinja template of yours, relative to the experiment file; null: the built-in one."""
    template: Annotated[str | None, IDENTITY, Field(min_length=1, max_length=TEMPLATE_CHARS_MAX)] = None
    """The text of that template; filled in from `template_file`."""


class DiscussionConfig(Section):
    """A discussion among the agents."""

    questions: Selection = QuestionSelection()
    """Files of questions (JSONL), relative to the experiment file; or a mapping that says which of these are asked."""
    questions_sha256: Annotated[str | None, IDENTITY, Field(pattern=DIGEST_PATTERN)] = None
    """The SHA-256 of those files one behind the other; filled in, and when it is given, held to."""
    topics: Annotated[Listed[Text], IDENTITY, Field(max_length=1000)] = ()
    """In place of files: open-ended questions."""
    max_rounds: Annotated[int, IDENTITY, Field(ge=1, le=1000)] = 2
    """After how many rounds it ends at the latest; in each, every agent speaks once."""
    identity_reveal_config: IdentityRevealConfig = IdentityRevealConfig()
    """What the others see of an agent."""
    routing_strategy: RoutingStrategy = RoutingStrategy()
    """Who reads whom."""
    stopping: StoppingConfig = StoppingConfig()
    """What ends it early."""
    edition: Annotated[Literal[4], IDENTITY] = 4
    """What agents read, how answers are read and what is recorded; a run of another edition is read by another version.
    """
    answers: AnswerConfig = AnswerConfig()
    """How near an answer has to be to a choice."""
    prompt: PromptConfig = PromptConfig()
    """What prompts look like."""

    _bank: tuple[Question, ...] = PrivateAttr(default=())

    def with_bank(self, bank: tuple[Question, ...]) -> DiscussionConfig:
        """This section with the questions that are asked. The file has the digest of its files only."""
        copy = self.model_copy()
        copy._bank = bank
        return copy

    def question_at(self, index: int) -> Question:
        """The question of conversation number `index`: they are taken in turn, over and over."""
        if self.topics:
            number = index % len(self.topics)
            return topic_question(number, self.topics[number])
        if not self._bank:
            raise ConfigError("the files of discussion.questions were not read; load the experiment from its own file")
        return self._bank[index % len(self._bank)]

    @property
    def question_count(self) -> int:
        """How many questions there are to discuss; 0 where the files were not read."""
        return len(self.topics) or len(self._bank)


_ROUTING: Final[KeyPath] = ("discussion", "routing_strategy")


def rule_problems(experiment: Experiment, discussion: DiscussionConfig) -> Iterator[Problem]:
    """The rules between fields that an experiment in the environment `discussion` breaks."""
    questions = discussion.questions
    if not questions.files and questions.is_whole and not discussion.topics:
        yield Problem(("discussion", "questions"), "is missing; name a JSONL file of questions, or list topics")
    yield from _selection_problems(questions)
    if (questions.files or not questions.is_whole) and discussion.topics:
        yield Problem(("discussion", "topics"), "is given beside questions; keep one of the two")
    if discussion.topics and discussion.prompt.choice_order == "permuted":
        path = ("discussion", "prompt", "choice_order")
        yield Problem(path, "changes nothing: topics have no choices; leave it out")
    if discussion.stopping.min_rounds > discussion.max_rounds:
        path = ("discussion", "stopping", "min_rounds")
        yield Problem(path, f"is more than max_rounds, which is {discussion.max_rounds}; lower it")
    reveal, rounds = discussion.identity_reveal_config, discussion.max_rounds
    if reveal.shows_something and reveal.reveal_from_round > rounds:
        path = ("discussion", "identity_reveal_config", "reveal_from_round")
        text = f"is {reveal.reveal_from_round}, but max_rounds is {rounds}, so identities would never be shown"
        yield Problem(path, f"{text}; lower it, raise max_rounds, or hide identities")
    yield from _roles(experiment)
    yield from _routing(experiment, discussion.routing_strategy)


def _roles(experiment: Experiment) -> Iterator[Problem]:
    roles = {agent.agent_id: agent.role for agent in experiment.agent_definitions}
    judges = [agent_id for agent_id, role in roles.items() if role == "judge"]
    for index, agent in enumerate(experiment.agent_definitions):
        path = ("agent_definitions", index)
        if agent.role not in DISCUSSION_ROLES:
            hint = suggestion(agent.role, DISCUSSION_ROLES)
            yield Problem((*path, "role"), f"the environment 'discussion' has no role {agent.role!r}{hint}")
        waits_for = agent.role_specific_config.speak_after_within_round
        if agent.role == "judge" and not any(roles.get(other) == "participant" for other in waits_for):
            key = (*path, "role_specific_config", "speak_after_within_round")
            yield Problem(key, "names no participant, so the judge hears no answer; list those whose answers it hears")
        if agent.agent_id in judges[1:]:
            yield Problem((*path, "role"), f"{judges[0]!r} is the judge already; a discussion has one at most")
    if "participant" not in roles.values():
        yield Problem(("agent_definitions",), "hold no agent with the role 'participant'; there would be no answers")


def _routing(experiment: Experiment, routing: RoutingStrategy) -> Iterator[Problem]:
    ids = [agent.agent_id for agent in experiment.agent_definitions]
    if routing.topology == "star" and routing.hub is None:
        yield Problem((*_ROUTING, "hub"), "is missing; a star needs the agent in its middle")
    if routing.hub is not None:
        yield from _unknown((*_ROUTING, "hub"), [routing.hub], ids, is_list=False)
    if routing.topology == "groups" and not routing.groups:
        yield Problem((*_ROUTING, "groups"), "is missing; name the groups and their members")
    for name, members in routing.groups.items():
        yield from _unknown((*_ROUTING, "groups", name), members, ids)
    seen: dict[str, str] = {}
    for name, members in routing.channels.items():
        # A reply names a channel in small letters and without punctuation.
        plain = re.sub(r"[._-]+", "_", name.casefold())
        if plain in seen:
            yield Problem((*_ROUTING, "channels", name), f"reads like the channel {seen[plain]!r}; rename one of them")
        seen[plain] = name
        yield from _unknown((*_ROUTING, "channels", name), members, ids)
        if len(set(members)) < 2:
            yield Problem((*_ROUTING, "channels", name), "has fewer than two members; no other could read it")
    for index, agent in enumerate(experiment.agent_definitions):
        path = ("agent_definitions", index, "role_specific_config", "visible_to")
        yield from _unknown(path, agent.role_specific_config.visible_to or (), ids)


def _unknown(path: KeyPath, named: Iterable[str], ids: Iterable[str], *, is_list: bool = True) -> Iterator[Problem]:
    for place, name in enumerate(named):
        if name not in ids:
            yield Problem((*path, place) if is_list else path, f"there is no agent {name!r}{suggestion(name, ids)}")


def with_materials(discussion: DiscussionConfig, base: Path, banks: dict[str, object], seed: int) -> DiscussionConfig:
    """The settings with the digest of the questions, those that `seed` draws, and the text of the template.

    `banks` keeps questions by their digest, so that combinations of a grid parse them once. Raises MaterialError for a
    file that cannot be used, and ConfigError naming every bad line.
    """
    prompt, asked = discussion.prompt, discussion.questions
    if prompt.template_file is not None:
        text = read_template(base / prompt.template_file, ("discussion", "prompt", "template_file"), prompt.template)
        discussion = discussion.model_copy(update={"prompt": prompt.model_copy(update={"template": text})})
    if not asked.files:
        return discussion
    names = {
        str(base / name): read_named(base / name, asked.file_key(number)) for number, name in enumerate(asked.files)
    }
    digest = hashlib.sha256(b"".join(names.values())).hexdigest()
    if discussion.questions_sha256 not in (None, digest):
        text = f"the files have the digest {digest}, another one; put back those the experiment was made with"
        raise _refused([Problem(("discussion", "questions_sha256"), f"{text}, or take the key out")])
    if digest not in banks:
        banks[digest] = read_questions(names)
    drawn = f"{digest} {seed} {asked.model_dump_json()}"
    if drawn not in banks:
        banks[drawn] = selected(cast("tuple[Question, ...]", banks[digest]), asked, seed)
    bank = cast("tuple[Question, ...]", banks[drawn])
    return discussion.model_copy(update={"questions_sha256": digest}).with_bank(bank)


def warnings(discussion: DiscussionConfig, conversations: int) -> Iterator[str]:
    """That questions from files repeat, where they do. A topic is there to be discussed over and over."""
    if discussion.questions.files and (repeated := repetition(conversations, discussion.question_count)):
        yield repeated
