"""File, profile, `--set`, `--seed` → Experiment: the one way in, and the one place that reads the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pydantic import ValidationError

from mac_runner.config.complaints import complaints
from mac_runner.config.consistency import inconsistencies
from mac_runner.config.document import Document, parse_document
from mac_runner.config.draft import Draft, as_object, draft_of, overlaid, resolve_path, with_value
from mac_runner.config.experiment import DEFAULT_PROFILE, Experiment
from mac_runner.config.materials import MaterialError, with_materials
from mac_runner.config.problems import Problem, config_error, dotted, found, suggestion
from mac_runner.config.section import KeyPath
from mac_runner.errors import ConfigError
from mac_runner.limits import YAML_SIZE_BYTES_MAX
from mac_runner.types import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An experiment, the complete config it came from, and where each of its values was written.

    `resolved` has every default filled in, no `profiles`, and under `profile` the one that was chosen;
    `Experiment.model_validate(resolved)` gives the experiment again. `locate` names `file:line` or the flag.
    """

    experiment: Experiment
    resolved: JsonObject
    locate: Callable[[KeyPath], str]


def load_experiment(
    path: Path, *, profile: str | None = None, overrides: Sequence[str] = (), seed: int | None = None
) -> Loaded:
    """Read an experiment file, lay the profile over it, then the `--set` values, then the seed.

    Raises ConfigError listing every problem of the first stage that has any: YAML, profile and flags, single
    values, and then what must hold between values.
    """
    source = str(path)
    document = parse_document(_read(path), source)
    draft = _profiled(document, source, profile)
    draft = _overridden(draft, overrides)
    if seed is not None:
        draft = with_value(draft, ("seed",), seed, "--seed")
    experiment = _validated(draft, path.parent)
    resolved: JsonObject = experiment.model_dump(mode="json")
    return Loaded(experiment=experiment, resolved=resolved, locate=draft.locate)


def _read(path: Path) -> bytes:
    """The bytes of the file, one more than allowed at most: how large it really is does not matter."""
    try:
        with path.open("rb") as file:
            return file.read(YAML_SIZE_BYTES_MAX + 1)
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read: {fault.strerror or fault}") from fault


def _profiled(document: Document, source: str, profile: str | None) -> Draft:
    if not isinstance(document.value, dict):
        raise config_error([f"{source}:1: {found(document.value)}; an experiment file is a mapping of sections"])
    base = {key: value for key, value in document.value.items() if key != "profiles"}
    draft = draft_of(base, document, source)
    profiles = _profiles(document.value.get("profiles"), draft)
    chosen = profile if profile is not None else base.get("profile", DEFAULT_PROFILE)
    if not isinstance(chosen, str):
        raise _told(draft, [Problem(("profile",), f"{found(chosen)}; allowed: the name of a profile")])
    if chosen not in profiles:
        where = "--profile" if profile is not None else f"{draft.locate(('profile',))}: profile"
        raise config_error([f"{where}: there is no profile {chosen!r}{suggestion(chosen, profiles)}"])
    overlay = draft_of(profiles[chosen], document, source, ("profiles", chosen))
    draft = overlaid(draft, overlay)
    return with_value(draft, ("profile",), chosen, "--profile") if profile is not None else draft


def _profiles(value: JsonValue, draft: Draft) -> dict[str, JsonObject]:
    """The overlays by name. All are looked at, so that a slip in one is seen before its turn comes."""
    if (first := next(wrong := _wrong_profiles(value), None)) is not None:
        raise _told(draft, chain([first], wrong))
    return {DEFAULT_PROFILE: {}, **{name: as_object(overlay) for name, overlay in as_object(value).items()}}


def _wrong_profiles(value: JsonValue) -> Iterator[Problem]:
    if not isinstance(value, dict | None):
        yield Problem(("profiles",), f"{found(value)}; allowed: a mapping of names to overlays")
    allowed = [key for key in Experiment.model_fields if key != "profile"]
    for name, overlay in as_object(value).items():
        if not isinstance(overlay, dict | None):
            yield Problem(("profiles", name), f"{found(overlay)}; allowed: a mapping of sections")
        for key in as_object(overlay):
            if key not in allowed:
                yield Problem(("profiles", name, key), f"unknown key{suggestion(key, allowed)}")


def _overridden(draft: Draft, overrides: Sequence[str]) -> Draft:
    problems: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        flag = f"--set {key}"
        try:
            if not equals:
                raise ValueError("no value; write --set KEY=VALUE")
            if key.split(".")[0] in ("profile", "profiles"):
                raise ValueError("profiles are laid over the file before --set; choose one with --profile")
            value = parse_document(text.encode("utf-8", "surrogatepass"), flag).value
            draft = with_value(draft, resolve_path(draft.value, key), value, flag)
        except ValueError as fault:
            problems.append(f"{flag}: {fault}")
        except ConfigError as fault:
            problems.append(str(fault))
    if problems:
        raise config_error(problems)
    return draft


def _validated(draft: Draft, base: Path) -> Experiment:
    """The experiment of a draft, with the files it names, relative to `base`, read."""
    problems: Iterator[Problem]
    try:
        experiment = Experiment.model_validate(draft.value)
    except ValidationError as failure:
        problems = complaints(failure, draft.value)
    else:
        problems = inconsistencies(experiment)
        if (first := next(problems, None)) is None:
            try:
                return with_materials(experiment, base)
            except MaterialError as fault:
                first = fault.problem
        problems = chain([first], problems)
    # Raised out here, not from the failure: its text repeats values, and one may be a key pasted in the wrong place.
    raise _told(draft, problems)


def _told(draft: Draft, problems: Iterable[Problem]) -> ConfigError:
    return config_error(f"{draft.locate(path)}: {dotted(path)}: {text}" for path, text in problems)
