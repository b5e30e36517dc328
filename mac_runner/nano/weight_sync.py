"""Other weights for a running engine: made ready beside it, put in between two steps.

Weights are checked when they are handed over, so whoever sends those of another model hears of it at once and the
engine keeps what it has. In flight, the new model is built by a thread while steps go on with the old one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.errors import ConfigError
from mac_runner.nano.runner import Prepared, Runner
from mac_runner.nano.weights import StateDict, check_state_dict


class WeightSync:
    """Which weights a runner computes with, and which come next. `on_install` is told of each new version."""

    def __init__(self, runner: Runner, model_config: ModelConfig, on_install: Callable[[int], None]) -> None:
        self.version = 0
        self._on_install = on_install
        self._runner = runner
        self._model_config = model_config
        self._coming: Future[Prepared] | None = None
        self._coming_version: int | None = None
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="nano-weights")  # Its thread starts when it is needed.

    def update(self, state_dict: StateDict, version: int | None) -> None:
        """Put these weights in now."""
        self.poll(wait=True)
        self._require_newer(version)
        self.install(self.prepare(state_dict), version)

    def begin(self, state_dict: StateDict, version: int | None) -> None:
        """Make these weights ready; the first `poll` after that puts them in. They must not be changed until then."""
        self.poll(wait=True)
        self._require_newer(version)
        check_state_dict(state_dict, self._model_config)
        self._coming = self._builder.submit(self._runner.build, state_dict)
        self._coming_version = version

    def poll(self, *, wait: bool = False) -> bool:
        """Put in what has become ready; whether anything was."""
        if self._coming is None or not (wait or self._coming.done()):
            return False
        coming, self._coming = self._coming, None
        self.install(coming.result(), self._coming_version)
        return True

    def close(self) -> None:
        """Wait for the thread, and forget what it made."""
        self._coming = None
        self._builder.shutdown()

    def prepare(self, state_dict: StateDict) -> Prepared:
        """A model of these weights, checked; may run beside steps, in another thread."""
        check_state_dict(state_dict, self._model_config)
        return self._runner.build(state_dict)

    def install(self, prepared: Prepared, version: int | None) -> None:
        """Compute with a prepared model from now on."""
        self._require_newer(version)
        self._runner.replace(prepared)
        self.version = self.version + 1 if version is None else version
        self._on_install(self.version)

    def _require_newer(self, version: int | None) -> None:
        if version is not None and version <= self.version:
            raise ConfigError(f"weights of version {version}: the engine has {self.version}, and versions only grow")
