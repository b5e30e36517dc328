"""What trainers are given. `.ci/trainers` runs what needs the trainers; elsewhere that is left out."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("trl") else ["test_read_back.py"]
