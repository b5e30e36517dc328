"""Prompts as Jinja templates: the built-in one of an environment, and a user's own in a sandbox (`sandbox/`).

A template is a number of blocks. A user's template may leave out blocks; the built-in ones replace them. It is given
the fields of its environment and no others, and text of models only as it may be shown (`markup.defuse`).

A run is resumed and verified by other processes than the one that began it. What depends on the process, such as an
address or the seed of hashes, would make another prompt in each. So a user's template is rendered again in a second
process before anything runs, and must say the same there.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from jinja2 import Environment, StrictUndefined, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError

from mac_runner.environments.sandbox import (
    GLOBALS,
    METER,
    PROMPT_CHARS_MAX,
    Meter,
    Sandbox,
    compiled,
    parsed,
)
from mac_runner.errors import ConfigError, ConversationError, OutOfMemoryError
from mac_runner.problems import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The templates of one environment."""

    blocks: tuple[str, ...]
    fields: tuple[str, ...]
    """What a template may name."""
    default: str
    """The text of the built-in template."""


_IMPLIED: Final = ("loop", "caller", "varargs", "kwargs")
"""What Jinja itself defines inside loops and macros."""

_FAULTS: Final = (
    *(TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)
"""What a template raises: Jinja's errors, and what its filters and the operations on values raise in plain Python."""

Values = Mapping[str, object]


class Blocks(Protocol):
    """The blocks of a prompt, ready to be rendered."""

    def render(self, block: str, values: Values) -> str:
        """One block with its values."""
        ...


class PromptTemplate:
    """The blocks of a prompt, ready to be rendered."""

    def __init__(self, kind: Kind, own: str | None = None, *, source: str = "template") -> None:
        """Raises ConfigError naming `source`, the line and the remedy when `own` cannot be used."""
        self._source = source
        # The built-in template is our own and needs no sandbox, which costs several times what rendering does.
        plain = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - no HTML
        self._default = default = plain.from_string(kind.default)
        self._blocks = {name: (default, default.blocks[name]) for name in kind.blocks}
        if own is not None:
            template = _compiled(kind, own, source)
            self._blocks |= {name: (template, block) for name, block in template.blocks.items()}

    def render(self, block: str, values: Values) -> str:
        """One block with its values, without blank lines at its ends.

        Raises ConversationError, naming the line, when the template cannot be rendered with these values.
        """
        template, render = self._blocks[block]
        is_own = template is not self._default
        try:
            # With all names in one mapping Jinja makes no copy of it.
            named = {**GLOBALS, **values, METER: Meter()} if is_own else {**values}
            pieces = cast("Generator[str]", render(template.new_context(named, shared=True)))
            return (_bounded(pieces) if is_own else "".join(pieces)).strip("\n")
        except _FAULTS as fault:
            raise ConversationError(
                f"{self._source}:{_line_of(fault, template)}: block {block}: {fault}; mend it"
            ) from fault


def _bounded(pieces: Generator[str]) -> str:
    """A text within the length of a prompt, and that can be sent."""
    taken, length = [], 0
    for piece in pieces:
        taken.append(piece)
        length += len(piece)
        if length > PROMPT_CHARS_MAX:
            # Raised in the template, it has the line.
            pieces.throw(SecurityError(f"writes more than {PROMPT_CHARS_MAX} characters"))
    text = "".join(taken)
    text.encode()  # Fails for half of a surrogate pair, which an escape can write.
    return text


def _compiled(kind: Kind, text: str, source: str) -> Template:
    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True)
    try:
        tree = parsed(sandbox, text)
        _refuse_unknown(kind, tree, source)
        return Template.from_code(sandbox, compiled(sandbox, tree), {})
    except TemplateSyntaxError as fault:
        raise ConfigError(f"{source}:{fault.lineno}: {fault.message}; mend the template") from fault


def _refuse_unknown(kind: Kind, tree: nodes.Template, source: str) -> None:
    blocks = list(tree.find_all(nodes.Block))
    if not blocks:
        raise ConfigError(
            f"{source}:1: the template has no block; write {{% block NAME %}} with {', '.join(kind.blocks)}"
        )
    for block in blocks:
        if block.name not in kind.blocks:
            raise ConfigError(
                f"{source}:{block.lineno}: unknown block {block.name!r}{suggestion(block.name, kind.blocks)}"
            )
    made = {name.name for name in tree.find_all(nodes.Name) if name.ctx in ("store", "param")}
    made |= {macro.name for macro in tree.find_all(nodes.Macro)}
    for name in tree.find_all(nodes.Name):
        if name.name not in {*kind.fields, *made, *GLOBALS, *_IMPLIED}:
            raise ConfigError(
                f"{source}:{name.lineno}: unknown field {name.name!r}{suggestion(name.name, kind.fields)}"
            )


def _line_of(fault: BaseException, template: Template) -> int:
    """The line of the template at which `fault` was raised, from the line of the code that Jinja made of it."""
    lines = [frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == "<template>"]
    return template.get_corresponding_lineno(lines[-1] or 1) if lines else 1


_REHEARSAL_S_MAX: Final = 60.0
_NO_ROOM: Final = (errno.ENOMEM, errno.EAGAIN)
_known: Final[set[str]] = set()
"""Digests of templates that were seen to say the same: the combinations of a grid have theirs in common."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A block, its values and its text."""

    block: str
    values: Values
    text: str


class Recorder:
    """Renders as its template does, and keeps the texts."""

    def __init__(self, template: PromptTemplate) -> None:
        self._template = template
        self.renderings: list[Rendering] = []

    def render(self, block: str, values: Values) -> str:
        """What the template renders."""
        text = self._template.render(block, values)
        self.renderings.append(Rendering(block, values, text))
        return text


def check_reproduced(kind: Kind, own: str, source: str, renderings: Sequence[Rendering]) -> None:
    """Render again in a second process, with another seed of hashes. Raises ConversationError where a text differs.

    Each template is looked at once in a process.
    """
    if (digest := _digest(own)) in _known:
        return
    found = _rendered_again(kind, own, source, [(each.block, each.values) for each in renderings])
    for rendering, text in zip(renderings, found, strict=True):
        if _digest(rendering.text) != text:
            raise ConversationError(
                f"{source}:1: block {rendering.block}: it renders differently in another process, so a run with it "
                "could not be resumed; take out what is not text or a number"
            )
    _known.add(digest)


def _rendered_again(kind: Kind, own: str, source: str, blocks: list[tuple[str, Values]]) -> list[str]:
    """The digest of each text, from a process of its own."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", __name__],
            input=pickle.dumps((kind, own, source, blocks)),
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            timeout=_REHEARSAL_S_MAX,
            check=True,
        )
    except OSError as fault:
        if fault.errno in _NO_ROOM:
            raise OutOfMemoryError("the second process that a template is rendered in") from fault
        raise ConversationError(f"{source}:1: it cannot be rendered in a second process: {fault}") from fault
    except subprocess.TimeoutExpired as fault:
        reason = f"it took more than {_REHEARSAL_S_MAX:g} s in a second process; make it simpler"
        raise ConversationError(f"{source}:1: {reason}") from fault
    except subprocess.CalledProcessError as fault:
        said = fault.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else f"it ended with code {fault.returncode}"
        raise ConversationError(f"{source}:1: it fails in a second process: {reason}") from fault
    digests: list[str] = json.loads(done.stdout)
    return digests


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _main() -> None:
    kind, own, source, blocks = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that began this one
    template = PromptTemplate(kind, own, source=source)
    sys.stdout.write(json.dumps([_digest(template.render(block, values)) for block, values in blocks]))


if __name__ == "__main__":
    _main()
