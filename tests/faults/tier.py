"""How much is tried: what a change must pass, or as many times that as MAC_RUNNER_TEST_SCALE says."""

from __future__ import annotations

import os

SCALE = int(os.environ.get("MAC_RUNNER_TEST_SCALE", "1"))
