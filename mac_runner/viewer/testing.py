"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.viewer.follower import NotThereError
from mac_runner.viewer.guard import HEADERS, Address, Opening, allowed_hosts, listening_at
from mac_runner.viewer.live import Cursor, Live, Pace
from mac_runner.viewer.publish import PublishRequest, publish
from mac_runner.viewer.search import byte_pattern, excerpt, search
from mac_runner.viewer.server import Viewer
from mac_runner.viewer.source import RunSource, Text
