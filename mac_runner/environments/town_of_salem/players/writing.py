"""How a scripted player writes a reply: the inverse of the parser, from the same table of acts."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.acts import ACTS, Form


def write(
    verb: str,
    *,
    target: str = "",
    second: str = "",
    text: str = "",
    choice: str = "",
    thought: str = "",
    will: str = "",
    death_note: str = "",
) -> str:
    """A reply that thinks `thought`, then does one act, with a new will and death note if there are any."""
    thinking = f"<thinking>{thought}</thinking>\n" if thought else ""
    side = f"<will>{will}</will>\n" if will else ""
    side += f"<death_note>{death_note}</death_note>\n" if death_note else ""
    act = f"<{verb}/>"
    match ACTS[verb].form:
        case Form.BARE:
            pass
        case Form.TEXT:
            channel = f' channel="{choice}"' if choice else ""
            act = f"<{verb}{channel}>{text}</{verb}>"
        case Form.NAME:
            act = f"<{verb}>{target}</{verb}>"
        case Form.TWO_NAMES:
            act = f"<{verb}>{target}, {second}</{verb}>"
        case Form.NAME_AND_TEXT:
            act = f'<{verb} to="{target}">{text}</{verb}>'
        case Form.CHOICE:
            act = f"<{verb}>{choice}</{verb}>"
    return f"{thinking}{side}{act}"
