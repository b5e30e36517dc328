"""File, profile, `--set`, `--seed` → one Experiment or a grid of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mac_runner.config.document import YAML_SIZE_BYTES_MAX, Override, Written, as_object, parse_document
from mac_runner.config.experiment import SHORT, Experiment
from mac_runner.config.grid_axes import GRID_KEY, Grid
from mac_runner.config.grid_expansion import expanded
from mac_runner.config.resolution import (
    Draft,
    Loaded,
    draft_error,
    draft_of,
    overlaid,
    recorded,
    recorded_draft,
    refuse,
    resolve_path,
    with_value,
)
from mac_runner.config.validation import belongs, without_effect
from mac_runner.errors import ConfigError
from mac_runner.files import IrregularFileError, read_regular
from mac_runner.problems import Problem, config_error, found, suggestion
from mac_runner.spec import DEFAULT_PROFILE
from mac_runner.types import JsonObject, JsonValue


def load(
    path: Path | Written,
    *,
    profile: str | None = None,
    overrides: Sequence[str | Override] = (),
    seed: int | str | None = None,
) -> Loaded | Grid:
    """Read an experiment file, lay the profile over it, then the `--set` values, then the seed; lay out its grid.

    The seed may be the text behind `--seed`: flags are read as if the file contained them.

    Raises ConfigError listing every problem of the first stage that has any: YAML, profile and flags, the grid, single
    values, and then what must hold between values.
    """
    written = path if isinstance(path, Written) else read_written(path)
    draft = _overridden(_profiled(written, profile), overrides)
    if seed is not None:
        draft = with_value(draft, ("seed",), _value("--seed", str(seed)), "--seed")
    return expanded(draft, written.base)


def revised(config: JsonObject, overrides: Sequence[str], source: str) -> Loaded:
    """A recorded experiment, with `--set` values laid over it. Files that it names are not read again.

    Raises ConfigError listing every problem: a key that does not exist, a value that is not allowed, and settings that
    would change nothing. What the recorded experiment ignored already is let pass.
    """
    draft = _overridden(Draft(value=config, origins={(): source}), overrides)
    if not overrides:
        return Loaded(experiment=recorded(config, source), resolved=config, locate=draft.locate)
    known = set(without_effect(recorded(config, source)))
    experiment = recorded_draft(draft)
    refuse(draft, (problem for problem in without_effect(experiment) if problem not in known))
    return Loaded(experiment=experiment, resolved=experiment.model_dump(mode="json"), locate=draft.locate)


def load_experiment(
    path: Path | Written, *, profile: str | None = None, overrides: Sequence[str] = (), seed: int | str | None = None
) -> Loaded:
    """The only experiment of a file, read as `load` does. Raises ConfigError for a file with a grid of them too."""
    found = load(path, profile=profile, overrides=overrides, seed=seed)
    if isinstance(found, Grid):
        count = len(found.combinations)
        raise ConfigError(f"{path}: defines a grid of {count} experiments; this command takes a single one")
    return found


def read_written(path: Path) -> Written:
    """The content of an experiment file. Raises ConfigError for one that cannot be read or is not YAML."""
    try:
        data = read_regular(path, YAML_SIZE_BYTES_MAX + 1)
    except IrregularFileError as fault:
        raise ConfigError(f"{path}: cannot be read: {fault.strerror}; write the experiment to a file") from fault
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read: {fault.strerror or fault}") from fault
    return replace(parse_document(data, str(path)), base=path.parent)


def _profiled(written: Written, profile: str | None) -> Draft:
    if not isinstance(written.value, dict):
        raise config_error([f"{written.name}:1: {found(written.value)}; an experiment file is a mapping of sections"])
    base = {key: value for key, value in written.value.items() if key != "profiles"}
    draft = draft_of(base, written)
    # All are checked, so that a slip in one is seen before that profile is used.
    refuse(draft, _wrong_profiles(written.value.get("profiles")))
    overlays = {DEFAULT_PROFILE: None, **as_object(written.value.get("profiles"))}
    profiles = {name: draft_of(as_object(overlay), written, ("profiles", name)) for name, overlay in overlays.items()}
    chosen = profile if profile is not None else base.get("profile", DEFAULT_PROFILE)
    if not isinstance(chosen, str):
        raise draft_error(draft, [Problem(("profile",), f"{found(chosen)}; allowed: the name of a profile")])
    if chosen not in profiles:
        where = "--profile" if profile is not None else f"{draft.locate(('profile',))}: profile"
        raise config_error([f"{where}: there is no profile {chosen!r}{suggestion(chosen, profiles)}"])
    draft = overlaid(draft, profiles[chosen])
    return with_value(draft, ("profile",), chosen, "--profile") if profile is not None else draft


def _wrong_profiles(value: JsonValue) -> Iterator[Problem]:
    if not isinstance(value, dict | None):
        yield Problem(("profiles",), f"{found(value)}; allowed: a mapping of names to overlays")
    allowed = [*SHORT, *(key for key in Experiment.model_fields if key != "profile"), GRID_KEY]
    for name, overlay in as_object(value).items():
        if not isinstance(overlay, dict | None):
            yield Problem(("profiles", name), f"{found(overlay)}; allowed: a mapping of sections")
        for key in as_object(overlay):
            if key not in allowed:
                elsewhere = "" if key in Experiment.model_fields else belongs((key,), Experiment)
                yield Problem(("profiles", name, key), f"unknown key{elsewhere or suggestion(key, allowed)}")


def whole_number(flag: str, text: str, *, at_least: int) -> int:
    """The number written behind a flag, as a file may write one. Raises ConfigError: what was found and is allowed."""
    value = _value(flag, text)
    if not isinstance(value, int) or isinstance(value, bool):
        raise config_error([f"{flag}: {found(value)}; allowed: a whole number"])
    if value < at_least:
        raise config_error([f"{flag}: {found(value)}; allowed: at least {at_least}"])
    return value


def _value(flag: str, text: str) -> JsonValue:
    return parse_document(text.encode("utf-8", "surrogatepass"), flag).value


def _overridden(draft: Draft, overrides: Sequence[str | Override]) -> Draft:
    problems: list[str] = []
    for override in overrides:
        key, equals, text = (override.key, "=", "") if isinstance(override, Override) else override.partition("=")
        flag = f"--set {key}"
        try:
            if not equals:
                raise ValueError("no value; write --set KEY=VALUE")
            if key.split(".")[0] in ("profile", "profiles"):
                raise ValueError("profiles are laid over the file before --set; choose one with --profile")
            value = override.value if isinstance(override, Override) else _value(flag, text)
            draft = with_value(draft, resolve_path(draft.value, key), value, flag)
        except ValueError as fault:
            problems.append(f"{flag}: {fault}")
        except ConfigError as fault:
            problems.append(str(fault))
    if problems:
        raise config_error(problems)
    return draft
