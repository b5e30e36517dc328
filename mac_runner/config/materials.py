"""The files an experiment names: its questions and its template, read when it is loaded.

A run has to mean the same when these files have moved or changed, so what counts is their content: the digest of the
questions and the text of the template become part of the config, and with it of the run's identity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from mac_runner.config.discussion import DiscussionConfig
from mac_runner.config.experiment import Experiment
from mac_runner.config.problems import Problem
from mac_runner.config.questions import Question, read_questions
from mac_runner.config.section import KeyPath
from mac_runner.errors import ConfigError
from mac_runner.limits import MATERIAL_BYTES_MAX, TEMPLATE_CHARS_MAX

Banks: TypeAlias = dict[str, tuple[Question, ...]]
"""Questions by the digest of their files: the combinations of a grid share what they have in common."""


class MaterialError(Exception):
    """A file that an experiment names cannot be used; `problem` has the key that names it."""

    def __init__(self, path: KeyPath, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(path, text)


def read_material(path: Path) -> bytes:
    """The bytes of a file. Raises ConfigError naming it when it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(MATERIAL_BYTES_MAX + 1)
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read: {fault.strerror or fault}; name a file that is there") from fault
    if len(data) > MATERIAL_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {MATERIAL_BYTES_MAX} bytes; split it")
    return data


def with_materials(experiment: Experiment, base: Path, banks: Banks) -> Experiment:
    """`experiment` with all it reads from files, named relative to `base`; questions in `banks` are not parsed again.

    Raises MaterialError when a file cannot be used, and ConfigError naming the lines of one that is there.
    """
    if experiment.discussion is None:
        return experiment
    discussion = _with_template(experiment.discussion, base)
    return experiment.model_copy(update={"discussion": _with_questions(discussion, base, banks)})


def _with_questions(discussion: DiscussionConfig, base: Path, banks: Banks) -> DiscussionConfig:
    if not discussion.questions:
        return discussion
    names = dict(_named(discussion.questions, base))
    digest = hashlib.sha256(b"".join(names.values())).hexdigest()
    if discussion.questions_sha256 not in (None, digest):
        text = f"the files have the digest {digest}, another one; put back those the experiment was made with"
        raise MaterialError(("discussion", "questions_sha256"), f"{text}, or take the key out")
    if digest not in banks:
        banks[digest] = read_questions(names)
    return discussion.model_copy(update={"questions_sha256": digest}).with_bank(banks[digest])


def _named(files: tuple[str, ...], base: Path) -> Iterator[tuple[str, bytes]]:
    for number, name in enumerate(files):
        yield str(base / name), _read(base / name, ("discussion", "questions", number))


def _with_template(discussion: DiscussionConfig, base: Path) -> DiscussionConfig:
    prompt = discussion.prompt
    if prompt.template_file is None:
        return discussion
    key = ("discussion", "prompt", "template_file")
    try:
        text = _read(base / prompt.template_file, key).decode("utf-8")
    except UnicodeDecodeError:
        raise MaterialError(key, f"{base / prompt.template_file} is not UTF-8; save it as UTF-8") from None
    if not 1 <= len(text) <= TEMPLATE_CHARS_MAX:
        raise MaterialError(
            key, f"{base / prompt.template_file} has {len(text)} characters, not 1 to {TEMPLATE_CHARS_MAX}"
        )
    if prompt.template not in (None, text):
        raise MaterialError(key, "the key template has another text; leave it out, it is filled in from the file")
    return discussion.model_copy(update={"prompt": prompt.model_copy(update={"template": text})})


def _read(path: Path, key: KeyPath) -> bytes:
    try:
        return read_material(path)
    except ConfigError as fault:
        raise MaterialError(key, str(fault)) from fault
