"""A process that compiles one grammar within a budget, to show that an engine's process can do the same.

It is run as a file, so that it loads nothing but that library. From stdin it reads the path of the tokenizer, the ids
that end a text, the grammar, and the budget: seconds of the processor and bytes, from when the tokenizer is loaded. It
writes what is wrong with the grammar, and the bytes it took. Beyond the budget it dies.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from math import ceil
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

NICENESS = 5
"""The engine's steps come first."""


def main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wanted = json.load(sys.stdin)
    tokenizer = LLTokenizer(
        Path(wanted["tokenizer"]).read_text(encoding="utf-8"), eos_token=wanted["eos_token_ids"] or None
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = ceil(used.ru_utime + used.ru_stime) + wanted["seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    mapped_bytes, before_bytes = _memory()
    if mapped_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + wanted["bytes"],) * 2)
    matcher = LLMatcher(tokenizer, wanted["grammar"], log_level=0)
    _, after_bytes = _memory()
    json.dump({"error": matcher.get_error().partition("\n")[0], "bytes": after_bytes - before_bytes}, sys.stdout)


def _memory() -> tuple[int, int]:
    """What this process has mapped and what it uses; 0 elsewhere than on Linux, where only its time is limited."""
    try:
        mapped, used = Path("/proc/self/statm").read_text(encoding="ascii").split()[:2]
    except OSError:
        return 0, 0
    return int(mapped) * resource.getpagesize(), int(used) * resource.getpagesize()


if __name__ == "__main__":
    main()
