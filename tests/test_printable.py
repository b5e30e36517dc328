from __future__ import annotations

import codecs

from hypothesis import given
from hypothesis import strategies as st

from mac_runner.printable import counted, printable, spelt_out


def test_printable_writes_what_would_act_on_a_terminal_as_an_escape_and_leaves_other_text_alone() -> None:
    for text, shown in {
        **{text: text for text in ("", "plain words", "naïve – “quoted”", "長い名前", "😀")},
        "\x1b[2J": r"\x1b[2J",
        "a\r\nb\tc": r"a\r\nb\tc",
        "\u202eevil": r"\u202eevil",
        "zero\u200bwidth": r"zero\u200bwidth",
        "line\u2028break": r"line\u2028break",
        "\ud800": r"\ud800",
        "\x9b1A": r"\x9b1A",
    }.items():
        assert printable(text) == shown


@given(st.text())
def test_printable_gives_one_line_that_can_be_encoded(text: str) -> None:
    shown = printable(text)

    assert len(shown.splitlines()) <= 1
    assert shown.encode("utf-8")[:1] != b"\x1b"
    assert printable(shown) == shown


def test_any_text_reaches_a_stream_of_any_encoding_and_our_own_tables_keep_their_shape() -> None:
    codecs.register_error("spelt_out", spelt_out)
    everything = "".join(map(chr, range(0x3000))) + "\ud800 \U0001f600"
    for encoding in ("ascii", "latin-1", "cp437", "cp500", "koi8-r", "shift_jis", "utf-8", "utf-16"):

        def told(text: str, encoding: str = encoding) -> str:
            return text.encode(encoding, "spelt_out").decode(encoding)

        assert told(everything)
        for line in ("a │ b ├── ┌┐└┘┤┬┴┼ █░ 19.2% – 51.2%", "“said” ‘so’ — 3 × 4"):
            assert len(told(line)) == len(line)
        if encoding in {"ascii", "latin-1"}:
            assert told("a → b … “q” ─ 名") == 'a > b ... "q" - \\u540d'


def test_one_thing_is_counted_in_the_singular_and_any_other_number_in_the_plural() -> None:
    assert [counted(n, "lane") for n in (0, 1, 2)] == ["0 lanes", "1 lane", "2 lanes"]
