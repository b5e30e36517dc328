"""The discussant with the manners of a small model: fences, prose, labels for texts, and now and then no answer.

It is there to try what becomes of such replies: what is matched, what is asked for again, what is counted.
"""

from __future__ import annotations

import json
from random import Random

from mac_runner.environments.discussion.players.discussant import discussant
from mac_runner.environments.discussion.prompts import DiscussionView


def clumsy(view: object, random: Random) -> str:
    """What `discussant` would say, said badly."""
    assert isinstance(view, DiscussionView)
    reply = discussant(view, random)
    said = json.loads(reply)
    match random.randrange(10):
        case 0:
            return f"Sure! Here is my reply:\n```json\n{reply}\n```\nI hope this helps."
        case 1:
            return f"<think>Let me see.</think>{reply[:-1]},}}"
        case 2:
            return "\n".join(f"{name.capitalize()}: {text}" for name, text in said.items())
        case 3:
            return json.dumps({**said, view.fields[0]: "", view.fields[-1]: "I am not sure about any of it."})
        case 4:
            return ""
        case _:
            return reply
