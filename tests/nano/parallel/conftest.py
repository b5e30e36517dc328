"""Tests of the parts of tensor parallelism. They need torch; `tests/nano` says where they were left out."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") is not None else ["test_*.py"]
