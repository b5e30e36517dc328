"""The experiment file: YAML → a frozen Experiment, and what makes two of them the same run.

`load` reads, resolves and checks, one experiment or a grid of them; `differences` compares two resolved configs.
Nothing else of the package reads YAML that a person wrote.
"""

from __future__ import annotations

from mac_runner.config.document import Override, Written, override, plain_value, yaml_text
from mac_runner.config.experiment import Experiment, ModelDefinition, decoding_of, reply_form_of
from mac_runner.config.grid_axes import BroadcastGroup, Combination, Grid, GridSection
from mac_runner.config.grid_expansion import in_words, renamed, slug_beside
from mac_runner.config.identity import (
    Difference,
    IdentityDiff,
    differences,
    foreign_edition,
    identity_of,
    recorded_decoding,
    recorded_speakers,
    shareable,
)
from mac_runner.config.loading import load, load_experiment, read_written, revised, whole_number
from mac_runner.config.resolution import Loaded, as_begun, recorded
from mac_runner.config.validation import allowed

__all__ = [
    "BroadcastGroup",
    "Combination",
    "Difference",
    "Experiment",
    "Grid",
    "GridSection",
    "IdentityDiff",
    "Loaded",
    "ModelDefinition",
    "Override",
    "Written",
    "allowed",
    "as_begun",
    "decoding_of",
    "differences",
    "foreign_edition",
    "identity_of",
    "in_words",
    "load",
    "load_experiment",
    "override",
    "plain_value",
    "read_written",
    "recorded",
    "recorded_decoding",
    "recorded_speakers",
    "renamed",
    "reply_form_of",
    "revised",
    "shareable",
    "slug_beside",
    "whole_number",
    "yaml_text",
]
