"""mac_runner: plays many multi-agent LLM conversations at once, and loses none of them.

The names listed here are the public interface. They follow semantic versioning from 0.2 on; every other name may change
in any version. A name is imported when it is first used, so `import mac_runner` itself costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Type checkers take it for true; importing `typing` would cost more than all the rest.

__version__ = "0.3.0"

__all__ = [
    "IDENTITY",
    "RUNTIME",
    "Agent",
    "AlikeFailuresError",
    "Ask",
    "AskView",
    "BackendError",
    "Broadcast",
    "BroadcastError",
    "ConfigError",
    "Conversation",
    "ConversationEnded",
    "ConversationError",
    "EndedAgent",
    "EndedConversation",
    "EndedTurn",
    "EngineDeadError",
    "Environment",
    "EnvironmentSpec",
    "Event",
    "Experiment",
    "Exported",
    "File",
    "FinishReason",
    "Game",
    "IdentityError",
    "Lineup",
    "MacRunnerError",
    "Message",
    "Notice",
    "OutOfMemoryError",
    "OwnBackend",
    "Policy",
    "PolicySpan",
    "Progress",
    "Prompt",
    "Receipt",
    "ReceiptKind",
    "RecordedConversation",
    "Reply",
    "Request",
    "RequestRefusedError",
    "RequestTimeoutError",
    "Rollout",
    "RunDirectoryError",
    "RunLockedError",
    "RunView",
    "Sampling",
    "Section",
    "ShortageError",
    "StaleVersionError",
    "StoreError",
    "Stream",
    "Table",
    "Task",
    "TokenCount",
    "TokenTrace",
    "TransientBackendError",
    "Turn",
    "UntrustedCodeError",
    "UpdateInProgressError",
    "WeightMismatchError",
    "WeightUpdate",
    "WeightUpdateError",
    "arun",
    "export",
    "fork",
    "game",
    "load",
    "open_run",
    "rollouts",
    "run",
    "stream",
    "value",
]

if TYPE_CHECKING:
    from mac_runner.api import (
        ConversationEnded,
        Event,
        Experiment,
        Notice,
        Progress,
        Stream,
        arun,
        fork,
        load,
        run,
        stream,
        value,
    )
    from mac_runner.backends.own import OwnBackend
    from mac_runner.data.rollouts import Rollout
    from mac_runner.environments import Conversation, Environment
    from mac_runner.environments.generators import Ask, AskView, Game, Table, game
    from mac_runner.errors import (
        AlikeFailuresError,
        BackendError,
        BroadcastError,
        ConfigError,
        ConversationError,
        EngineDeadError,
        IdentityError,
        MacRunnerError,
        OutOfMemoryError,
        RequestRefusedError,
        RequestTimeoutError,
        RunDirectoryError,
        RunLockedError,
        ShortageError,
        StaleVersionError,
        StoreError,
        TransientBackendError,
        UntrustedCodeError,
        UpdateInProgressError,
        WeightMismatchError,
        WeightUpdateError,
    )
    from mac_runner.metrics import EndedAgent, EndedConversation, EndedTurn
    from mac_runner.registry import EnvironmentSpec
    from mac_runner.runs.export import Exported, export
    from mac_runner.runs.policies import Policy
    from mac_runner.runs.view import RecordedConversation, RunView, open_run, rollouts
    from mac_runner.section import IDENTITY, RUNTIME, File, Section
    from mac_runner.types import (
        Agent,
        FinishReason,
        Lineup,
        Message,
        PolicySpan,
        Prompt,
        Receipt,
        ReceiptKind,
        Reply,
        Request,
        Sampling,
        Task,
        TokenCount,
        TokenTrace,
        Turn,
    )
    from mac_runner.weights import Broadcast, WeightUpdate
else:
    _MODULES = {
        "api": (
            "ConversationEnded",
            "Event",
            "Experiment",
            "Notice",
            "Progress",
            "Stream",
            "arun",
            "fork",
            "load",
            "run",
            "stream",
            "value",
        ),
        "backends.own": ("OwnBackend",),
        "data.rollouts": ("Rollout",),
        "environments": ("Conversation", "Environment"),
        "environments.generators": ("Ask", "AskView", "Game", "Table", "game"),
        "metrics": ("EndedAgent", "EndedConversation", "EndedTurn"),
        "registry": ("EnvironmentSpec",),
        "runs.export": ("Exported", "export"),
        "runs.policies": ("Policy",),
        "runs.view": ("RecordedConversation", "RunView", "open_run", "rollouts"),
        "section": ("IDENTITY", "RUNTIME", "File", "Section"),
        "weights": ("Broadcast", "WeightUpdate"),
        "types": (
            *("Agent", "FinishReason", "Lineup", "Message", "PolicySpan", "Prompt", "Receipt"),
            *("ReceiptKind", "Reply", "Request", "Sampling", "Task", "TokenCount", "TokenTrace", "Turn"),
        ),
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        place = next((module for module, names in _MODULES.items() if name in names), "errors")
        globals()[name] = found = getattr(import_module(f"{__name__}.{place}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__])
