from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mac_runner.section import flaw_of

SOUND = (
    "http://127.0.0.1:11434 https://api.example.com/v1/ http://[::1]:8000/v1 http://[fe80::1%25eth0]:8000/v1 "
    "http://gpu-1/openai/v1 http://bücher.example/v1 http://h/a%2Fb/v1"
)
FLAWED = {
    "http://h:99999/v1": "Port out of range",
    "http://h:abc/v1": "Port could not be cast",
    "http://h:0/v1": "no port 0",
    "http://[::1/v1": "Invalid IPv6 URL",
    "http:///v1": "no host",
    "http://:8000/v1": "no host",
    "http://ex..com/v1": "label",
    f"http://{'a' * 64}.com/v1": "label",
    "http://a\\b/v1": "characters",
    "http://a\x08b/v1": "characters",
    "http://h/v1?key=x": "ends with its path",
    "http://h/v1#x": "ends with its path",
}


def test_an_impossible_address_is_refused_with_its_flaw() -> None:
    assert {url: flaw for url, flaw in FLAWED.items() if flaw not in str(flaw_of(url))} == {}
    assert [url for url in SOUND.split() if flaw_of(url) is not None] == []


@given(rest=st.text(max_size=40))
def test_any_text_has_a_flaw_or_none(rest: str) -> None:
    assert flaw_of(f"http://{rest}") != ""
