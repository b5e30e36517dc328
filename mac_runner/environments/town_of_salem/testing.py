"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.environments.reading import Cause, Problem
from mac_runner.environments.town_of_salem.bots import POLICIES
from mac_runner.environments.town_of_salem.bots.seat import Room, Seat
from mac_runner.environments.town_of_salem.bots.speech import (
    Kind,
    Sentence,
    Statement,
    plain,
    points_in,
    read_wordings,
    understand,
    wordings,
    write,
)
from mac_runner.environments.town_of_salem.bots.tactics import Aim, check_tactics, tactic
from mac_runner.environments.town_of_salem.claims import Claim, ClaimKind, Says, estimates, extract
from mac_runner.environments.town_of_salem.claims.language import CONTINUING
from mac_runner.environments.town_of_salem.conversation import Due, Game, SpeakingQueue
from mac_runner.environments.town_of_salem.counts import measure
from mac_runner.environments.town_of_salem.environment import TownOfSalem
from mac_runner.environments.town_of_salem.hindsight import (
    ActRecord,
    death_rows,
    event_row,
    hindsight_of,
    night_row,
    trial_rows,
)
from mac_runner.environments.town_of_salem.measures import MEASURES, Count, judged, seat_measure
from mac_runner.environments.town_of_salem.model.events import (
    BLOCKED,
    RESULT,
    UNKNOWN_ROLE,
    AnyKind,
    Event,
    EventKind,
    Events,
    Notice,
    private,
    public,
)
from mac_runner.environments.town_of_salem.model.role import DOUSED, NightState, others
from mac_runner.environments.town_of_salem.model.state import (
    Ballot,
    Death,
    DeathCause,
    Faction,
    GameState,
    NightAction,
    Options,
    Phase,
    Player,
    Seance,
)
from mac_runner.environments.town_of_salem.record import GameRecord, Outcome, read_record
from mac_runner.environments.town_of_salem.roles import (
    ROLES,
    Alignment,
    DayAbility,
    Level,
    NightAbility,
    Role,
    Step,
    register,
    unregister,
)
from mac_runner.environments.town_of_salem.roles.town_investigative import bugged
from mac_runner.environments.town_of_salem.rules.acts import (
    ACTS,
    CHANNEL,
    CHOICE,
    NOTES_CHARS_MAX,
    WILL_CHARS_MAX,
    Act,
    IllegalActError,
    Offer,
    apply,
    apply_beside,
    check,
    check_beside,
    offers,
)
from mac_runner.environments.town_of_salem.rules.calendar import (
    Channel,
    announcement,
    dusk,
    end_round,
    has_won,
    new_game,
    result_now,
    turn_taking_rule,
    validate,
)
from mac_runner.environments.town_of_salem.rules.lobbies import (
    LOBBIES,
    NAMES,
    deal,
    role_list,
    roles_in_play,
    roles_of,
    slot_name,
)
from mac_runner.environments.town_of_salem.rules.night import play_out, resolve
from mac_runner.environments.town_of_salem.scene import game_scene
from mac_runner.environments.town_of_salem.seat.asking import Asking
from mac_runner.environments.town_of_salem.seat.knowledge import (
    Choice,
    GameLog,
    SeatView,
    sentence,
    view_of,
    without_heading,
)
from mac_runner.environments.town_of_salem.seat.mending import MENDED_CHARS_MAX
from mac_runner.environments.town_of_salem.seat.prompts import KIND, Prompts, tokens_of
from mac_runner.environments.town_of_salem.seat.replies import (
    Chosen,
    Reading,
    ToolRequest,
    read,
    read_object,
)
from mac_runner.environments.town_of_salem.seat.texts import ATTRIBUTES, EVENT_WORDS, PHASE_RULES
from mac_runner.environments.town_of_salem.seat.tools import (
    OBSERVATION_CHARS_MAX,
    TOOL_CALLS_PER_TURN_MAX,
    TOOLS,
    conduct_of,
    observe,
)
from mac_runner.environments.town_of_salem.settings import (
    DISCUSSIONS,
    DiscussionMode,
    GameCalendar,
    GameLatency,
    ToolName,
)
from mac_runner.environments.town_of_salem.tables import RESULTS, game_results, win_tables
from mac_runner.environments.town_of_salem.tournament import compare_games
from mac_runner.environments.town_of_salem.truth import game_truth
from mac_runner.environments.town_of_salem.verdicts import (
    RoleHistory,
    Utterance,
    judged_claims,
    opposes_town,
)
