"""Where vLLM's loggers write, looked up by each process for itself."""

from __future__ import annotations

import logging
import os
from typing import Final

LOG_VARIABLE: Final = "MAC_RUNNER_VLLM_LOG"
"""The environment variable that names a process's log."""


def log_handler() -> logging.Handler:
    """A handler that appends to the log of this process."""
    return logging.FileHandler(os.environ.get(LOG_VARIABLE, os.devnull))
