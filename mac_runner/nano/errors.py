"""The errors of nano, one class for each reason.

    NanoError
    ├── ConfigError           a setting is wrong: correct it and start again
    ├── ModelError            a model's files or a state dict are not what was expected
    │   ├── ModelNotFoundError         no model at the path
    │   ├── UnknownArchitectureError   a model of an unknown kind
    │   ├── MissingTensorError         a weight that the model needs is missing
    │   ├── UnexpectedTensorError      a weight that the model has no place for
    │   ├── WrongShapeError            a weight of another size
    │   ├── WrongDtypeError            a weight of another kind of numbers
    │   └── NonFiniteWeightError       a weight of an update that has NaN or an infinity
    ├── WeightUpdateError     new weights were not installed: the engine goes on with those it has
    │   ├── StaleVersionError          their version is not newer than the engine's
    │   ├── UpdateInProgressError      another update is under way
    │   └── BroadcastError             a trainer or another receiver was lost, too slow, or refused
    ├── RequestError          this request cannot be served; all others are
    │   ├── InvalidRequestError        empty, token ids out of range, contradictory settings
    │   ├── PromptTooLongError         it does not fit the model's window or the KV cache
    │   ├── ConstraintError       a schema or choice list that nothing can follow
    │   ├── NonFiniteLogitsError       the model computed NaN or an infinity for it
    │   └── QueueFullError             too many requests are waiting: come again later
    └── EngineStoppedError    the engine was shut down, or died of the error it names
        └── RankFailedError            one of its processes failed or died, and all were ended
            └── DivergenceError            its processes disagree about what they compute

Each message says what happened, to what, and what to do.
"""

from __future__ import annotations


class NanoError(Exception):
    """The root of all errors that nano raises on purpose."""


class ConfigError(NanoError):
    """A setting is wrong."""


class ModelError(NanoError):
    """A model's files, or a state dict, are not what was expected."""


class ModelNotFoundError(ModelError):
    """The path holds no model."""


class UnknownArchitectureError(ModelError):
    """The model is of an unknown kind."""


class MissingTensorError(ModelError):
    """A weight that the model needs is missing."""


class UnexpectedTensorError(ModelError):
    """The model has no place for a weight."""


class WrongShapeError(ModelError):
    """A weight has another size than the model's."""


class WrongDtypeError(ModelError):
    """A weight is not a tensor of floating-point numbers."""


class NonFiniteWeightError(ModelError):
    """A weight of an update has NaN or an infinity."""


class WeightUpdateError(NanoError):
    """New weights were not installed. The engine goes on with those it has."""


class StaleVersionError(WeightUpdateError):
    """The engine has weights of this version, or of a newer one."""


class UpdateInProgressError(WeightUpdateError):
    """Another update of the same engine is under way."""


class BroadcastError(WeightUpdateError):
    """A trainer did not send all weights, or another receiver did not take them. None of them is used."""


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


class ReplicaLostError(RequestError):
    """A stream cannot go on: its replica was lost, and another one computes other tokens."""


class EngineStoppedError(NanoError):
    """The engine serves no more requests."""


class RankFailedError(EngineStoppedError):
    """One process of an engine failed or died, and all were ended. The notes hold its traceback."""


class DivergenceError(RankFailedError):
    """Processes of one engine disagree about what they compute, or compute with; all were ended."""
