"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.viewer.guard import HEADERS, allowed_hosts
from mac_runner.viewer.listening import Address, Opening, listening_at
from mac_runner.viewer.live import Cursor, Live, Pace
from mac_runner.viewer.publish import PublishRequest, publish
from mac_runner.viewer.run_source import RunSource
from mac_runner.viewer.search import byte_pattern, excerpt, search
from mac_runner.viewer.server import Viewer
from mac_runner.viewer.source import NotThereError, Source, Text
