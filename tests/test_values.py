"""The value of a turn: paired figures of two arms."""

from collections.abc import Sequence

from mac_runner.runs.testing import RESAMPLED, SAID, Rollout, value_of
from mac_runner.store.testing import objects
from mac_runner.types import JsonObject

TURN: JsonObject = {"of": "small-000000", "turn": "4/Abel/0/0", "agent": "Abel"}


def value(said: Sequence[float], drawn: Sequence[float]) -> JsonObject:
    """The value of a turn from figures of equal draws."""
    rolled = [
        Rollout(arm=arm, draw=draw, figure=figure, reply=f"{arm} {draw}")
        for arm, figures in ((SAID.name, said), (RESAMPLED.name, drawn))
        for draw, figure in enumerate(figures, 1)
    ]
    return value_of(rolled, [SAID.name, RESAMPLED.name], turn=TURN, figure="won", is_scripted=False)


def test_few_pairs_are_said_to_be_few() -> None:
    for count, is_few in ((1, True), (3, True), (9, True), (10, False), (40, False)):
        notes = value([1.0] * count, [0.0] * count)["notes"]
        assert isinstance(notes, list)
        assert any("rough" in str(note) for note in notes) is is_few, count


def test_draws_are_compared_in_pairs() -> None:
    found = value([1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 1, 0])
    (pair,) = objects(found, "differences")
    assert (pair["pairs"], pair["ahead"], pair["difference"]) == (6, [3, 1], 2 / 6)
    assert pair["mcnemar_p"] == 0.625
