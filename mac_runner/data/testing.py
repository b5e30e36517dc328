"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.data.files import encoder
from mac_runner.data.rollouts import TrainingRun, prompt_table
from mac_runner.data.tables import LEFT_OUT, Ended, FlatTable, metadata_of, schema_json, tables_of
from mac_runner.data.training import FORMATS, training_tables
