"""Everything the engine refuses, one class for each reason.

    NanoError
    ├── ConfigError           a setting that cannot be: mend it and start again
    ├── ModelError            what lies in the model's directory, or a state dict, is not what was expected
    │   ├── ModelNotFoundError         no model there
    │   ├── UnknownArchitectureError   a model of a kind that is not known here
    │   ├── MissingTensorError         a weight that the model needs is not there
    │   ├── UnexpectedTensorError      a weight that the model has no place for
    │   └── WrongShapeError            a weight of another size
    ├── RequestError          this request cannot be served; all others are
    │   ├── InvalidRequestError        empty, token ids out of range, settings that contradict each other
    │   ├── PromptTooLongError         it does not fit the model's window or the KV cache
    │   ├── ConstraintError       a schema or choice list that cannot be followed
    │   ├── NonFiniteLogitsError       the model computed NaN or an infinity for it
    │   └── QueueFullError             too many requests are waiting: come again later
    └── EngineStoppedError    the engine was shut down, or has died of the error it names
        └── RankFailedError            one of its processes failed or died, and all were ended

Each message says what happened, to what, and what to do.
"""

from __future__ import annotations


class NanoError(Exception):
    """The root: whatever the engine raises on purpose."""


class ConfigError(NanoError):
    """A setting that cannot be."""


class ModelError(NanoError):
    """A model's files, or a state dict, are not what was expected."""


class ModelNotFoundError(ModelError):
    """There is no model at the path."""


class UnknownArchitectureError(ModelError):
    """A model of a kind that is not known here."""


class MissingTensorError(ModelError):
    """A weight that the model needs is not there."""


class UnexpectedTensorError(ModelError):
    """A weight that the model has no place for."""


class WrongShapeError(ModelError):
    """A weight of another size than the model's."""


class RequestError(NanoError):
    """One request cannot be served; the engine goes on with all others."""


class InvalidRequestError(RequestError):
    """The request makes no sense as it stands."""


class PromptTooLongError(RequestError):
    """The request does not fit the model's window or the KV cache."""


class ConstraintError(RequestError):
    """A schema or a choice list that cannot be followed."""


class NonFiniteLogitsError(RequestError):
    """The model computed NaN or an infinity for this request."""


class QueueFullError(RequestError):
    """As many requests are waiting as may wait."""


class EngineStoppedError(NanoError):
    """The engine serves nobody any more."""


class RankFailedError(EngineStoppedError):
    """One of the processes of an engine has failed or died, and all were ended. Its notes have that one's traceback."""
