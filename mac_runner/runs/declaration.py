"""The section `report` of an experiment file, checked against the combinations of its grid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from mac_runner.config import Combination, Loaded, ReportConfig, in_words
from mac_runner.errors import ConfigError
from mac_runner.paired import compared_figures
from mac_runner.problems import clipped, config_error, dotted, suggestion
from mac_runner.registry import results_specs
from mac_runner.results import Declared
from mac_runner.section import KeyPath
from mac_runner.types import JsonValue

_BASELINE, _PRIMARY = ("report", "baseline"), ("report", "primary")
_NAMES_SHOWN = 3


def refuse_report(loaded: Loaded) -> None:
    """Raises ConfigError where a single experiment has the section."""
    report = loaded.experiment.report
    for path, value in ((_BASELINE, report.baseline), (_PRIMARY, report.primary)):
        if value is not None:
            text = "changes nothing without a grid: combinations are compared with a baseline; leave `report` out"
            raise _refusal(loaded, path, f"{text}, or set it to null")


def declared_report(report: ReportConfig, combinations: Sequence[Combination]) -> Declared | None:
    """What the combinations are compared with, and by which figure first; None without the section.

    Raises ConfigError, with the key, for a baseline or a figure that is not there.
    """
    loaded = combinations[0].loaded
    if report.baseline is None:
        if report.primary is not None:
            raise _refusal(loaded, _BASELINE, "is missing; the primary outcome is compared with that of a baseline")
        return None
    environment = loaded.experiment.conversation_config.environment
    spec = results_specs().get(loaded.experiment.spec.section)
    figures = () if spec is None else (*compared_figures(spec.measures),)
    if not figures:
        text = f"changes nothing in the environment {environment!r}, whose combinations have no baseline; leave it out"
        raise _refusal(loaded, _BASELINE, text)
    slug = report.baseline if isinstance(report.baseline, str) else None
    if slug is None:
        assert not isinstance(report.baseline, str)
        baseline = _of_values(report.baseline, combinations)
    elif (named := next((one for one in combinations if one.slug == slug), None)) is not None:
        baseline = named
    else:
        text = f"there is no combination {slug!r}; give its name, or its values"
        raise _refusal(loaded, _BASELINE, f"{text}{suggestion(slug, (one.slug for one in combinations))}")
    if report.primary is not None and report.primary not in figures:
        text = f"there is no figure {report.primary!r} to compare{suggestion(report.primary, figures)}"
        raise _refusal(loaded, _PRIMARY, text)
    return Declared(baseline.slug, report.primary)


def _of_values(values: Mapping[str, JsonValue], combinations: Sequence[Combination]) -> Combination:
    """The only combination with these values."""
    loaded = combinations[0].loaded
    columns = list(dict.fromkeys(column for one in combinations for column in one.values))
    for column, value in values.items():
        path = (*_BASELINE, column)
        if column not in columns:
            raise _refusal(loaded, path, f"the grid does not vary it{suggestion(column, columns)}")
        there = {_text(one.values[column]): one.values[column] for one in combinations if column in one.values}
        if _text(value) not in there:
            known = ", ".join(clipped(each) for each in there.values())
            raise _refusal(loaded, path, f"no combination has {clipped(value)}; the grid has: {known}")
    fitting = [
        one
        for one in combinations
        if all(column in one.values and _text(one.values[column]) == _text(value) for column, value in values.items())
    ]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise _refusal(loaded, _BASELINE, f"no combination has all of {in_words(values)}; see --dry-run for those")
    open_ = [column for column in columns if len({_text(one.values.get(column)) for one in fitting}) > 1]
    shown = "; ".join(in_words(one.values) for one in fitting[:_NAMES_SHOWN])
    more = "; ..." if len(fitting) > _NAMES_SHOWN else ""
    text = f"fits {len(fitting)} combinations ({shown}{more}); name one of them: add a value of {', '.join(open_)}"
    raise _refusal(loaded, _BASELINE, text)


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True)


def _refusal(loaded: Loaded, path: KeyPath, text: str) -> ConfigError:
    return config_error([f"{loaded.locate(path)}: {dotted(path)}: {text}"])
