"""Engines on the GPUs of this machine: found, placed, started, watched and started again.

The names listed here are public. They are imported when they are first used, so `import mac_runner.fleet` costs
nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False

__all__ = ["InferenceEngine", "InferenceError", "InferenceRequest", "on_vllm"]

if TYPE_CHECKING:
    from mac_runner.fleet.inference import InferenceEngine, InferenceError, InferenceRequest, on_vllm
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        globals()[name] = found = getattr(import_module(f"{__name__}.inference"), name)
        return found

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__])
