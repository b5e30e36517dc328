"""The files that a discussion names: its questions and its template."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from mac_runner.config.materials import MaterialError, read_named
from mac_runner.environments.discussion.questions import Question, read_questions
from mac_runner.environments.discussion.settings import DiscussionConfig
from mac_runner.limits import TEMPLATE_CHARS_MAX


def with_materials(discussion: DiscussionConfig, base: Path, banks: dict[str, object]) -> DiscussionConfig:
    """The settings with the digest of the questions, the questions, and the text of the template.

    `banks` keeps questions by their digest, so that combinations of a grid parse them once.
    """
    return _with_questions(_with_template(discussion, base), base, banks)


def _with_questions(discussion: DiscussionConfig, base: Path, banks: dict[str, object]) -> DiscussionConfig:
    if not discussion.questions:
        return discussion
    names = dict(_named(discussion.questions, base))
    digest = hashlib.sha256(b"".join(names.values())).hexdigest()
    if discussion.questions_sha256 not in (None, digest):
        text = f"the files have the digest {digest}, another one; put back those the experiment was made with"
        raise MaterialError(("discussion", "questions_sha256"), f"{text}, or take the key out")
    if digest not in banks:
        banks[digest] = read_questions(names)
    bank = cast("tuple[Question, ...]", banks[digest])
    return discussion.model_copy(update={"questions_sha256": digest}).with_bank(bank)


def _named(files: tuple[str, ...], base: Path) -> Iterator[tuple[str, bytes]]:
    for number, name in enumerate(files):
        yield str(base / name), read_named(base / name, ("discussion", "questions", number))


def _with_template(discussion: DiscussionConfig, base: Path) -> DiscussionConfig:
    prompt = discussion.prompt
    if prompt.template_file is None:
        return discussion
    key = ("discussion", "prompt", "template_file")
    try:
        text = read_named(base / prompt.template_file, key).decode("utf-8")
    except UnicodeDecodeError:
        raise MaterialError(key, f"{base / prompt.template_file} is not UTF-8; save it as UTF-8") from None
    if not 1 <= len(text) <= TEMPLATE_CHARS_MAX:
        raise MaterialError(
            key, f"{base / prompt.template_file} has {len(text)} characters, not 1 to {TEMPLATE_CHARS_MAX}"
        )
    if prompt.template not in (None, text):
        raise MaterialError(key, "the key template has another text; leave it out, it is filled in from the file")
    return discussion.model_copy(update={"prompt": prompt.model_copy(update={"template": text})})
