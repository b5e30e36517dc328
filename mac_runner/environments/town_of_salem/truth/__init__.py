"""The truth about a finished game, for the record: what was claimed and whether it was so, nights, trials, deaths.

Everything here knows more than any player. Nothing that decides, prompts or plays imports it but the telling of the
record at the end.
"""

from __future__ import annotations

from mac_runner.environments.town_of_salem.truth.claims import claims_told
from mac_runner.environments.town_of_salem.truth.deaths import deaths_told
from mac_runner.environments.town_of_salem.truth.lives import Lives
from mac_runner.environments.town_of_salem.truth.nights import night_told
from mac_runner.environments.town_of_salem.truth.trials import trials_told
from mac_runner.environments.town_of_salem.truth.utterances import Said, Utterance, spoken, written

__all__ = [
    "Lives",
    "Said",
    "Utterance",
    "claims_told",
    "deaths_told",
    "night_told",
    "spoken",
    "trials_told",
    "written",
]
