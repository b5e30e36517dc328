"""What is closed at the end of a `with`, and which error is told when closing fails as well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from mac_runner.errors import StoreError


class Closing(ABC):
    """Closed at the end of its `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Bring everything to its end. Raises StoreError when something could not be written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StoreError:
            # An error already on its way tells more; the failed write is most often its cause.
            if fault is None:
                raise
