"""A template of one's own, rendered again in a second process, to see that it says the same there.

A run is resumed and verified by other processes than the one that began it. What depends on the process (an address,
the seed of hashes) would be another prompt in each.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mac_runner.environments.discussion.templates import PromptTemplate, Values
from mac_runner.errors import ConversationError, OutOfMemoryError
from mac_runner.limits import TEMPLATE_REHEARSAL_S_MAX

_NO_ROOM: Final = (errno.ENOMEM, errno.EAGAIN)
_known: Final[set[str]] = set()
"""Digests of templates that were seen to say the same: the combinations of a grid have theirs in common."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A block, what it was given and what came of it."""

    block: str
    values: Values
    text: str


class Recorder:
    """Renders as its template does, and keeps what came of it."""

    def __init__(self, template: PromptTemplate) -> None:
        self._template = template
        self.renderings: list[Rendering] = []

    def render(self, block: str, values: Values) -> str:
        """The same as the template renders."""
        text = self._template.render(block, values)
        self.renderings.append(Rendering(block, values, text))
        return text


def check_reproduced(own: str, source: str, renderings: Sequence[Rendering]) -> None:
    """Render again in a second process, with another seed of hashes. Raises ConversationError where a text differs.

    Each template is looked at once in a process.
    """
    if (digest := _digest(own)) in _known:
        return
    found = _rendered_again(own, source, [(each.block, each.values) for each in renderings])
    for rendering, text in zip(renderings, found, strict=True):
        if _digest(rendering.text) != text:
            raise ConversationError(
                f"{source}:1: block {rendering.block}: it renders differently in another process, so a run with it "
                "could not be resumed; take out what is not text or a number"
            )
    _known.add(digest)


def _rendered_again(own: str, source: str, blocks: list[tuple[str, Values]]) -> list[str]:
    """The digest of each text, from a process of its own."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", __name__],
            input=pickle.dumps((own, source, blocks)),
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            timeout=TEMPLATE_REHEARSAL_S_MAX,
            check=True,
        )
    except OSError as fault:
        if fault.errno in _NO_ROOM:
            raise OutOfMemoryError("the second process that a template is rendered in") from fault
        raise ConversationError(f"{source}:1: it cannot be rendered in a second process: {fault}") from fault
    except subprocess.TimeoutExpired as fault:
        told = f"it took more than {TEMPLATE_REHEARSAL_S_MAX:g} s in a second process; make it simpler"
        raise ConversationError(f"{source}:1: {told}") from fault
    except subprocess.CalledProcessError as fault:
        said = fault.stderr.decode(errors="replace").strip().splitlines()
        told = said[-1] if said else f"it ended with code {fault.returncode}"
        raise ConversationError(f"{source}:1: it fails in a second process: {told}") from fault
    digests: list[str] = json.loads(done.stdout)
    return digests


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _main() -> None:
    own, source, blocks = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that began this one
    template = PromptTemplate(own, source=source)
    sys.stdout.write(json.dumps([_digest(template.render(block, values)) for block, values in blocks]))


if __name__ == "__main__":
    _main()
