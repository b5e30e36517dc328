"""The one table of what a player can do.

Each entry says how the act is written, when it may be chosen and what it does. The prompt's reference, the list of what
is legal now, the parser and the rules all read this table; nothing about an act stands anywhere else. The abilities
of the roles are entered from the catalogue.
"""

from __future__ import annotations

from mac_runner.environments.town_of_salem.acts.spec import Act, ActSpec, Form, Offer
from mac_runner.environments.town_of_salem.acts.table import ACTS, offers

__all__ = ["ACTS", "Act", "ActSpec", "Form", "Offer", "offers"]
