from __future__ import annotations

import pytest

from mac_runner.environments.base import gated


def test_gated_leaves_an_order_without_gates_as_it_is() -> None:
    assert gated([3, 1, 2], {}) == [3, 1, 2]


def test_gated_moves_only_those_who_wait_behind_those_they_wait_for() -> None:
    assert gated(["mod", "ann", "bob", "judge"], {"mod": {"ann", "bob"}, "judge": {"mod"}}) == [
        "ann",
        "bob",
        "mod",
        "judge",
    ]


def test_gated_does_not_wait_for_those_who_are_not_there() -> None:
    assert gated(["mod", "ann"], {"mod": {"bob"}}) == ["mod", "ann"]


def test_gated_refuses_a_circle() -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        gated(["a", "b"], {"a": {"b"}, "b": {"a"}})
