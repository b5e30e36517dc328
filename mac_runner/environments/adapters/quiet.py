"""Keep a library that is being imported from the terminal."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet() -> Iterator[None]:
    """Drop greetings on standard output, and warnings about the age of a library.

    Both belong to the whole process, so this is for the setup of an environment and never for a conversation.
    """
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
