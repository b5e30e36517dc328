"""`discussion`: what is discussed, who reads whom, what others see of an agent, how answers are read, when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import Field, PrivateAttr

from mac_runner.environments.discussion.questions import Question, topic_question
from mac_runner.errors import ConfigError
from mac_runner.limits import TEMPLATE_CHARS_MAX
from mac_runner.section import DIGEST_PATTERN, IDENTITY, RUNTIME, Listed, Name, Section, Text

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
    """What the others see of an agent besides its id; all of it hidden, they see ids only."""

    persona: Annotated[bool, IDENTITY] = False
    """Whether the others read its persona."""
    demographics: Annotated[bool, IDENTITY] = False
    """Whether the others read its demographics."""
    presence_mode: Annotated[Literal["hidden", "as_declared", "all_human", "all_ai"], IDENTITY] = "hidden"
    """What the others are told it takes part as: nothing, what its `if_as_human` says, a human, or an AI."""


class RoutingStrategy(Section):
    """Who reads whose words of earlier rounds. An agent always reads its own, as far back as the others'."""

    history_rounds: Annotated[int | None, IDENTITY, Field(ge=1, le=1000)] = 1
    """How many earlier rounds an agent reads: 1 is the previous one, null all of them."""
    topology: Annotated[Literal["everyone", "ring", "star", "groups"], IDENTITY] = "everyone"
    """Whom it reads: everyone; its two neighbours in the order of definition; the hub (which reads all); its groups."""
    hub: Annotated[Name | None, IDENTITY] = None
    """With `star`: the agent in the middle."""
    groups: Annotated[Mapping[Name, Listed[Name]], IDENTITY] = {}
    """With `groups`: the members of each; an agent may be in several, and reads nobody if it is in none."""
    channels: Annotated[Mapping[Name, Listed[Name]], IDENTITY] = {}
    """Private channels and their members, who may write to them beside what they say; nobody else reads them."""


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
    answer_order: Annotated[Literal["rationale_first", "answer_first"], IDENTITY] = "rationale_first"
    """Which of the two a reply begins with."""
    identity_place: Annotated[Literal["system", "last"], IDENTITY] = "system"
    """Where an agent is told who it is: in the system message, or behind what was said, where it costs less cache."""
    template_file: Annotated[Text | None, RUNTIME] = None
    """A Jinja template of one's own, relative to the experiment file; null: the built-in one."""
    template: Annotated[str | None, IDENTITY, Field(min_length=1, max_length=TEMPLATE_CHARS_MAX)] = None
    """The text of that template; filled in from `template_file`."""


class DiscussionConfig(Section):
    """A discussion among the agents."""

    questions: Annotated[Listed[Text], RUNTIME, Field(max_length=100)] = ()
    """Files of questions (JSONL), relative to the experiment file; the conversations take the questions in turn."""
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
    answers: AnswerConfig = AnswerConfig()
    """How answers are read."""
    prompt: PromptConfig = PromptConfig()
    """What prompts look like."""

    _bank: tuple[Question, ...] = PrivateAttr(default=())

    def with_bank(self, bank: tuple[Question, ...]) -> DiscussionConfig:
        """This section with the questions that its files hold. They are no part of the file, their digest is."""
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
