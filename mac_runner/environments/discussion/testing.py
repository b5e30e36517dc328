"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.environments.discussion.bias import Tally, stances_of
from mac_runner.environments.discussion.bots import POLICIES
from mac_runner.environments.discussion.environment import DiscussionConversation, DiscussionEnvironment
from mac_runner.environments.discussion.formats import benchmark_item, convert
from mac_runner.environments.discussion.identity import identity_of
from mac_runner.environments.discussion.influence import NOT_SHOWN
from mac_runner.environments.discussion.measures import own_identity
from mac_runner.environments.discussion.outcome import Answer, BiasItem, DiscussionResult
from mac_runner.environments.discussion.prompts import KIND, DiscussionView, aside_field
from mac_runner.environments.discussion.questions import (
    YES_OR_NO,
    Choice,
    Question,
    QuestionType,
    permuted,
    read_questions,
    topic_question,
)
from mac_runner.environments.discussion.reading.answers import ANSWER_CHARS_MAX, Found, read_fields
from mac_runner.environments.discussion.reading.matching import Match, Matcher, listed, refuses, unknown_choice
from mac_runner.environments.discussion.reading.words import words
from mac_runner.environments.discussion.record import ANSWER_COLUMNS, Record, answer_rows
from mac_runner.environments.discussion.results import (
    ALL_MEASURES,
    RESULTS,
    DiscussionResults,
    discussion_figures,
    discussion_lines,
    discussion_results,
    discussion_tables,
)
from mac_runner.environments.discussion.roles import ROLES, Moment
from mac_runner.environments.discussion.scene import BIASED, PASSED, REFUSED, RIGHT, UNSCORED, WRONG, stances, verdict
from mac_runner.environments.discussion.settings import (
    ChoiceFormat,
    DiscussionRole,
    IdentityRevealConfig,
    QuestionSelection,
    RoutingStrategy,
    repetition,
    selected,
)
from mac_runner.environments.discussion.state import Said, readable
from mac_runner.environments.discussion.targets import NO_ANSWER_INFO, NO_TARGET, NOT_A_GROUP, NOT_AVAILABLE, bias_item
from mac_runner.environments.reading import Cause, Problem
from mac_runner.measures import NUMBERS, Clusters, Rate, Share
