"""The errors of nano, one class for each reason. Each message says what happened, to what, and what to do."""

from __future__ import annotations


class NanoError(Exception):
    """The root of all errors that nano raises on purpose."""


class ConfigError(NanoError):
    """A setting is wrong: correct it and start again."""


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
    """The request makes no sense as it stands: empty, token ids out of range, contradictory settings."""


class PromptTooLongError(RequestError):
    """The request does not fit the model's window or the KV cache."""


class ConstraintError(RequestError):
    """A schema or a choice list that cannot be followed."""


class NonFiniteLogitsError(RequestError):
    """The model computed NaN or an infinity for this request."""


class QueueFullError(RequestError):
    """As many requests are waiting as may wait: come again later."""


class ReplicaLostError(RequestError):
    """A request cannot go on: too many replicas were lost over it, or that of its stream was."""


class EngineStoppedError(NanoError):
    """The engine was shut down, or died of the error it names."""


class RankFailedError(EngineStoppedError):
    """One process of an engine failed or died, and all were ended. The notes hold its traceback."""


class DivergenceError(RankFailedError):
    """Processes of one engine disagree about what they compute, or compute with; all were ended."""
