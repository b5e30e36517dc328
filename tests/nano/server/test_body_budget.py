"""The memory that the bodies of all requests share."""

from __future__ import annotations

import random

import pytest
from starlette.datastructures import Headers

from mac_runner.nano.server.gates import BodyBudget
from mac_runner.nano.testing import (
    BODY_BYTES_FREE,
    BODY_BYTES_MAX,
    BodyShare,
    Refusal,
    RefusedError,
    require_length_within_bounds,
)


def refusal_of(share: BodyShare, num_bytes: int) -> Refusal | None:
    """Why so many bytes more are not taken; None where they are."""
    try:
        share.grow(num_bytes)
    except RefusedError as error:
        return error.refusal
    return None


def test_budget_holds_what_has_arrived_and_never_more_than_it_may() -> None:
    dice, wrong = random.Random(7), list[str]()
    for round_ in range(200):
        budget = BodyBudget(dice.randrange(1, 20 << 20))
        sizes = dict[BodyShare, int]()
        for step in range(60):
            share = dice.choice([*sizes, budget.share()])
            if dice.random() < 0.2:
                share.release()
                sizes.pop(share, None)
            else:
                more = dice.choice((1, 65_536, 1 << 20, 3 << 20))
                refusal, size = refusal_of(share, more), sizes.setdefault(share, 0)
                sizes[share] = size if refusal else size + more
                if refusal and size + more <= min(BODY_BYTES_FREE, BODY_BYTES_MAX):
                    wrong.append(f"round {round_}, step {step}: a short body was refused")
                if refusal and (refusal.status == 413) != (size + more > BODY_BYTES_MAX):
                    wrong.append(f"round {round_}, step {step}: {refusal} for {size + more} bytes")
            held = sum(max(size - BODY_BYTES_FREE, 0) for size in sizes.values())
            if not held == budget.held_bytes <= budget.bytes_max:
                wrong.append(f"round {round_}, step {step}: {budget.held_bytes} for {held} of {budget.bytes_max}")
        for share in sizes:
            share.release()
            share.release()
        if budget.held_bytes:
            wrong.append(f"round {round_}: {budget.held_bytes} are left")

    assert wrong == []


def test_budget_that_is_used_up_says_when_to_ask_again() -> None:
    refusal = refusal_of(BodyBudget(0).share(), BODY_BYTES_FREE + 1)

    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (503, "server_busy", 1)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, None),
        ({"content-length": "0"}, None),
        ({"content-length": str(BODY_BYTES_MAX)}, None),
        ({"content-length": "000" + str(BODY_BYTES_MAX)}, None),
        ({"content-length": str(BODY_BYTES_MAX + 1)}, 413),
        ({"content-length": "9" * 9000}, 413),
        ({"content-length": ""}, 400),
        ({"content-length": "-1"}, 400),
        ({"content-length": "+1"}, 400),
        ({"content-length": "1,1"}, 400),
        ({"content-length": "²"}, 400),
        ({"content-length": "1", "transfer-encoding": "chunked"}, 400),
        ({"transfer-encoding": "chunked"}, None),
    ],
)
def test_declared_length_is_a_number_within_bounds(headers: dict[str, str], status: int | None) -> None:
    found = None
    try:
        require_length_within_bounds(Headers(headers))
    except RefusedError as error:
        found = error.refusal.status

    assert found == status
