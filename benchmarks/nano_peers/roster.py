"""Who takes part: what a contestant is, and which of them can be had here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from benchmarks.nano_peers.setting import Setting
from benchmarks.nano_peers.timing import Prompts, Run

PEERS = ("transformers", "static", "llama.cpp", "vllm")


class Contestant(Protocol):
    """Something that generates; it was made for one `Setting`."""

    @property
    def name(self) -> str:
        """Its name in the rows."""
        ...

    def run(self, prompts: Prompts, num_new: int) -> Run:
        """Say so many tokens behind every prompt, the likeliest each time; what was computed before does not help."""
        ...

    def close(self) -> None:
        """Give back what the garbage collector does not."""
        ...


def reasons_to_leave_out(names: Sequence[str], vllm_python: Path | None) -> dict[str, str]:
    """Who of these cannot take part, and why."""
    reasons = dict[str, str]()
    if "llama.cpp" in names and (missing := [name for name in ("llama_cpp", "gguf") if find_spec(name) is None]):
        reasons["llama.cpp"] = f"not installed: {', '.join(missing)}"
    if "vllm" in names and vllm_python is None:
        reasons["vllm"] = "no --vllm-python was given"
    return reasons


@contextmanager
def contestants(names: Sequence[str], setting: Setting, vllm_python: Path | None) -> Iterator[list[Contestant]]:
    """All of them, made now and closed at the end."""
    with ExitStack() as stack:
        found = list[Contestant]()
        for name in names:
            contestant = _make(name, setting, vllm_python)
            stack.callback(contestant.close)
            found.append(contestant)
        yield found


def _make(name: str, setting: Setting, vllm_python: Path | None) -> Contestant:
    # Optional contestants are imported only when they take part.
    if name == "nano":
        from benchmarks.nano_peers.nano import Nano

        return Nano(setting)
    if name == "transformers":
        from benchmarks.nano_peers.hugging_face import Transformers

        return Transformers(setting)
    if name == "static":
        from benchmarks.nano_peers.static import StaticLoop

        return StaticLoop(setting)
    if name == "llama.cpp":
        from benchmarks.nano_peers.llama import LlamaCpp

        return LlamaCpp(setting)
    if name == "vllm" and vllm_python is not None:
        from benchmarks.nano_peers.vllm import Vllm

        return Vllm(setting, vllm_python)
    raise ValueError(f"unknown contestant {name!r}")
