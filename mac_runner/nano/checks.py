"""Whether a setting is of the kind it should be, before it is compared with anything."""

from __future__ import annotations

from numbers import Integral, Real


def is_whole(value: object) -> bool:
    """Whether it counts something: an int or an integer of numpy's, and no boolean."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it measures something: whole or not, NaN included, and no boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def are_texts(value: object) -> bool:
    """Whether it is a tuple of texts, none of them empty."""
    return isinstance(value, tuple) and all(isinstance(each, str) and each != "" for each in value)


def are_token_ids(value: object) -> bool:
    """Whether it is a set of whole numbers that cannot be changed."""
    return isinstance(value, frozenset) and all(map(is_whole, value))
