"""The filter language of the pages, as the server reads it."""

from __future__ import annotations

import pytest

from mac_runner.errors import ConfigError
from mac_runner.results import Column, Value
from mac_runner.views.testing import is_met, parse_filter

COLUMNS = {
    "number": Column("number"),
    "status": Column("word"),
    "winner": Column("words"),
    "days": Column("number"),
    "even": Column("truth"),
}
ROW: dict[str, Value] = {"number": 7, "status": "finished", "winner": ["town", "Jester"], "days": 5, "even": True}


def test_filters_choose_what_the_page_chooses() -> None:
    expected = {
        "": True,
        "days>4": True,
        "days>5": False,
        "days>=5 days<6 days!=4": True,
        "days=4|5": True,
        "days:5": True,
        "days!=4|5": False,
        "winner=TOWN": True,
        "winner=tow": False,
        "winner:tow": True,
        "winner!=town": False,
        'winner="mafia"|jester': True,
        "finished": True,
        "failed": False,
        "status==finished": True,
        "even": True,
        "even=no": False,
        "jest": True,
        '"no such text"': False,
        "days>4 failed": False,
    }
    found = {text: is_met(parse_filter(text, COLUMNS), ROW, COLUMNS) for text in expected}

    assert found == expected
    assert not is_met(parse_filter("days!=1", COLUMNS), {**ROW, "days": None}, COLUMNS)


def test_filter_that_says_nothing_about_the_columns_is_refused_by_name() -> None:
    for text, words in {
        "dayz>4": "no column 'dayz'",
        "days>": "days is compared with nothing",
        "days>x": "days is a number",
        "winner>town": "winner has no order",
        "even=perhaps": "even is yes or no",
    }.items():
        with pytest.raises(ConfigError, match=words):
            parse_filter(text, COLUMNS)
