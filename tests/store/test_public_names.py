from __future__ import annotations

from mac_runner import store


def test_store_offers_these_names_and_no_other() -> None:
    assert sorted(store.__all__) == [
        "Counts",
        "Disk",
        "Finding",
        "FindingKind",
        "Run",
        "RunContents",
        "Survey",
        "System",
        "VerifyReport",
        "build_transcript",
        "in_wall_clock_order",
        "index_row",
        "is_complete",
        "open_run",
        "read_run",
        "replies_of",
        "survey",
        "task_of",
        "verify_run",
        "without_timing",
    ]
    assert all(hasattr(store, name) for name in store.__all__)
