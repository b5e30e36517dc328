"""A user's template for the prompts of a game, in the sandbox that discussions have.

It has two blocks: `system`, and `turn`, the user message. A template may leave out one of them. Its own words replace
ours, but not the game: a template that leaves out how to answer, what is asked or what may be chosen is refused. Only a
`system` block without any words is accepted: it is for models that were trained on the game, and no system message is
sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mac_runner.environments.templates import Kind, PromptTemplate
from mac_runner.environments.town_of_salem.model.state import Options
from mac_runner.environments.town_of_salem.seat.asking import Asking
from mac_runner.environments.town_of_salem.seat.knowledge import SeatView
from mac_runner.environments.town_of_salem.seat.prompts import system_parts, turn_parts
from mac_runner.errors import ConversationError

DEFAULT: Final = """\
{% block system %}
You play one seat in a game of Town of Salem, a game of hidden roles.

RULES
{{ rules }}

ROLES IN THIS GAME
{{ roles }}

HOW TO ANSWER
{{ how_to_answer }}

{{ warning }}
{% if instructions %}

{{ instructions }}
{% endif %}
{% endblock %}

{% block turn %}
THE RECORD, KNOWN TO ALL
{{ record }}

THE TOWN
{{ town }}

KNOWN TO YOU
{{ known }}

NOW
{{ when }}.
{{ identity }}
{{ question }}
{{ options }}
{{ reminder }}
{% endblock %}
"""
"""The built-in prompts as a template, to begin one of your own with."""

KIND: Final = Kind(
    blocks=("system", "turn"),
    fields=(
        *("rules", "slots", "roles", "role_cards", "how_to_answer", "warning", "instructions"),
        *("record", "town", "known", "when", "name", "role", "is_alive", "can_do", "goal", "team", "target"),
        *("persona", "identity", "question", "options", "reminder"),
    ),
    default=DEFAULT,
)

_NEEDED: Final = {
    "system": ("how_to_answer", "warning"),
    "turn": ("record", "known", "question", "options"),
}
"""What a block has to say, word for word."""


class GameTemplate:
    """The two messages of a prompt in a user's words."""

    def __init__(self, template: PromptTemplate, source: str) -> None:
        self._template = template
        self._source = source

    def system(self, lobby: tuple[str, ...], options: Options, asking: Asking) -> str:
        """The system message."""
        return self._rendered("system", system_parts(lobby, options, asking))

    def turn(
        self,
        view: SeatView,
        asking: Asking,
        public: Sequence[str] | None = None,
        private: Sequence[str] | None = None,
    ) -> str:
        """The user message."""
        return self._rendered("turn", turn_parts(view, asking, public, private))

    def _rendered(self, block: str, parts: dict[str, object]) -> str:
        text = self._template.render(block, parts)
        for name in () if block == "system" and not text else _NEEDED[block]:
            if str(parts[name]) not in text:
                raise ConversationError(
                    f"{self._source}:1: block {block}: it leaves out {{{{ {name} }}}} or changes its words; players "
                    "could not play by it; put it in as it is"
                )
        return text


def checked(text: str, source: str, rehearse: Callable[[GameTemplate], None]) -> GameTemplate:
    """The template, once every kind of prompt was rendered with it.

    Raises ConfigError and ConversationError naming the line at fault.
    """
    template = GameTemplate(PromptTemplate(KIND, text, source=source), source)
    rehearse(template)
    return template
