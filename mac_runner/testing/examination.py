"""Try all promises of an environment, and say of each whether it is kept, where it is not, and what to do."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mac_runner.environments.base import Conversation
from mac_runner.errors import ConversationError, MacRunnerError, boundary, said_by
from mac_runner.testing.promises import PROMISES, BrokenPromiseError, Promise, Subject


class Finding(NamedTuple):
    """What came of trying one promise."""

    name: str
    text: str
    is_kept: bool
    what: str = ""
    """What happened instead."""
    place: str = ""
    """The conversation and turn."""
    where: str = ""
    """File and line of the environment's code, where an exception came from there."""
    remedy: str = ""


def examine(subject: Subject, begin: Callable[[Promise], None] = lambda _promise: None) -> Iterator[Finding]:
    """Try one promise after the other. `begin` is called before each."""
    for promise in PROMISES:
        begin(promise)
        try:
            with boundary(ConversationError, ""):
                promise.check(subject)
        except MacRunnerError as fault:
            yield _broken(subject, promise, fault.__cause__ or fault)
        else:
            yield Finding(promise.name, promise.text, is_kept=True)


def _broken(subject: Subject, promise: Promise, fault: BaseException) -> Finding:
    what = str(fault) if isinstance(fault, BrokenPromiseError) else said_by(fault)
    what = what.removeprefix(f"{subject.place}: ")
    where = "" if isinstance(fault, BrokenPromiseError) else _where(subject, fault)
    return Finding(promise.name, promise.text, False, what, subject.place, where, promise.remedy)


def _where(subject: Subject, fault: BaseException) -> str:
    """The innermost line of the environment's own code; of any code where that is not known."""
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if subject.is_own is not None and subject.is_own(frame.filename)] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def digests(subject: Subject) -> Iterator[tuple[str, list[str]]]:
    """Each conversation with a digest of each of its turns and of its end, the same in every process."""
    for task in subject.tasks:
        for name, answer in (("", subject.player(task)), (" with garbage", subject.careless_player(task))):
            try:
                with boundary(ConversationError, ""):
                    played = subject.play(task, answer)
                    marks = [f"{reply.turn_key} {reply.prompt_sha256[:12]}" for reply in played.replies]
                    yield f"{task.task_id}{name}", [*marks, f"its end {_digest(played.conversation)}"]
            except MacRunnerError as fault:
                yield f"{task.task_id}{name}", [f"{subject.place}: {fault}"]


def _digest(conversation: Conversation) -> str:
    state = repr((conversation.outcome, conversation.record(), conversation.fingerprint()))
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()[:12]
