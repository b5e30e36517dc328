"""The garbage collector while a run is under way: it looks at what is new only, and seldom.

What is alive when the requests begin (modules, models of the configuration, the plan) stays alive to the end, and one
look through all of it holds up every request in flight for as long as a batch of tokens takes. Not even a first look
is worth its time: there is little garbage before a run. What a run itself makes is freed by counting references; cycles
are the exception, and they are found among what is new.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from mac_runner.limits import COLLECTION_OBJECTS


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Inside the block what was there before is passed over, and COLLECTION_OBJECTS are new before any look."""
    young, *older = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(max(young, COLLECTION_OBJECTS), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
        gc.unfreeze()
