from __future__ import annotations

from mac_runner import store


def test_store_offers_these_names_and_no_other() -> None:
    assert sorted(store.__all__) == [
        "Counts",
        "Disk",
        "Finding",
        "FindingKind",
        "GridEntry",
        "GridRecord",
        "GridRun",
        "GridStanding",
        "Merged",
        "Run",
        "RunContents",
        "SessionStanding",
        "Standing",
        "Survey",
        "System",
        "VerifyReport",
        "build_transcript",
        "encode_for_reading",
        "grid_accounting",
        "grid_entries",
        "has_run",
        "in_wall_clock_order",
        "index_row",
        "is_complete",
        "is_grid",
        "merge_accounting",
        "merge_runs",
        "open_grid",
        "open_run",
        "read_grid",
        "read_grid_standing",
        "read_run",
        "read_standing",
        "read_summary",
        "replies_of",
        "survey",
        "task_of",
        "verify_run",
        "without_timing",
        "write_tables",
    ]
    assert all(hasattr(store, name) for name in store.__all__)
