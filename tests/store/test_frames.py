from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.store import records
from mac_runner.store.testing import decode_frame, encode_frame, encode_json, lines, scan
from mac_runner.types import JsonObject

RECORDS: list[JsonObject] = [
    {"id": f"t{i}", "kind": "reply", "text": f'say {{"id":"t9"}} \n\u2028\0\ud800 {i} 1a2b3c4d {{"x"'} for i in range(6)
]
FRAMES = [encode_frame(record) for record in RECORDS]
FILE = b"".join(FRAMES)

texts = st.text(st.characters(exclude_categories=())).filter(lambda text: text == round_trip_of_pairs(text))


def round_trip_of_pairs(text: str) -> str:
    """JSON reads a high and a low surrogate side by side as the one character they mean."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


@given(st.lists(st.dictionaries(texts, texts | st.integers() | st.none(), min_size=1), max_size=5))
def test_frames_bring_back_any_text(records: list[JsonObject]) -> None:
    found = scan(b"".join(map(encode_frame, records)))

    assert found.records == tuple(records)
    assert found.damage == ()


def test_frame_is_one_line_of_ascii() -> None:
    for frame in FRAMES:
        assert frame.isascii()
        assert frame.count(b"\n") == 1
        assert frame.endswith(b"\n")


def test_scan_of_a_file_cut_anywhere_finds_all_whole_frames_and_no_damage() -> None:
    ends = [len(b"".join(FRAMES[:n])) for n in range(len(FRAMES) + 1)]
    for length in range(len(FILE) + 1):
        found = scan(FILE[:length])
        whole = sum(end <= length for end in ends) - 1

        assert found.records == tuple(RECORDS[:whole])
        assert found.good_length == ends[whole]
        assert found.damage == ()


@pytest.mark.parametrize("mask", [0x01, 0x04, 0x20, 0x80, 0xFF])
def test_scan_with_any_byte_altered_accepts_no_other_record_and_loses_at_most_one(mask: int) -> None:
    for position in range(len(FILE)):
        altered = bytearray(FILE)
        altered[position] ^= mask
        found = scan(bytes(altered))

        assert all(record in RECORDS for record in found.records)
        assert len(found.records) >= len(RECORDS) - 1
        assert found.damage or found.good_length < len(FILE)


def test_scan_with_any_byte_turned_into_a_newline_loses_at_most_one_record() -> None:
    for position in range(len(FILE)):
        found = scan(FILE[:position] + b"\n" + FILE[position + 1 :])

        assert all(record in RECORDS for record in found.records)
        assert len(found.records) >= len(RECORDS) - 1


def test_damage_names_its_place() -> None:
    found = scan(FRAMES[0] + b"garbage\n" + FRAMES[1])

    assert found.records == (RECORDS[0], RECORDS[1])
    assert [(damage.offset, damage.size_bytes) for damage in found.damage] == [(len(FRAMES[0]), 7)]


@given(st.binary(max_size=300))
def test_scan_takes_no_garbage_for_a_record(data: bytes) -> None:
    found = scan(data)

    assert found.records == ()
    assert found.good_length <= len(data)


@given(st.integers(1, 700))
def test_lines_do_not_depend_on_how_the_file_is_read(size: int) -> None:
    assert list(lines(in_pieces(FILE + b"torn", size))) == list(lines([FILE + b"torn"]))


def test_line_longer_than_a_frame_is_measured_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FRAME_BYTES_MAX", 1_000)
    data = FRAMES[0] + b"x" * 5_000 + b"\n" + FRAMES[1]
    long = list(lines(in_pieces(data, 64)))[1]

    assert (long.offset, long.size_bytes, long.data, long.is_ended) == (len(FRAMES[0]), 5_000, b"", True)
    assert [decode_frame(line.data) is not None for line in lines(in_pieces(data, 64))] == [True, False, True]


def test_record_longer_than_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FRAME_BYTES_MAX", 1_000)

    with pytest.raises(ValueError, match="than a frame"):
        encode_frame({"text": "x" * 2_000})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_does_not_know_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_json({"x": value})


def test_equal_values_have_equal_bytes() -> None:
    assert encode_json({"b": 1, "a": [2]}) == encode_json({"a": [2], "b": 1}) == b'{"a":[2],"b":1}'
