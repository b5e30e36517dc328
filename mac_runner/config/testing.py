"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.config.document import YAML_DEPTH_MAX, YAML_NODES_MAX, YAML_SIZE_BYTES_MAX, parse_document, plain_scalar
from mac_runner.config.grid_axes import GRID_COMBINATIONS_MAX
from mac_runner.config.grid_expansion import GRID_SLUG_CHARS_MAX, NAME_CHARS_MAX
from mac_runner.config.schema import file_schema, schema_text
from mac_runner.config.validation import belongs
