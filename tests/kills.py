"""A process that ends at a chosen operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """Stands for a signal that kills the process."""


class Kills:
    """Raises `Killed` at the n-th moment of the operations that it watches.

    Args:
        left: Number of moments until then; 0 for never.
    """

    def __init__(self, left: int = 0) -> None:
        self.left = left

    def watch(self, operation: Callable[..., Any], *, before: bool = True, after: bool = False) -> Any:
        """Return an operation with a moment before it, after it, or both."""

        def watched(*arguments: Any, **options: Any) -> Any:
            self._pass(before)
            result = operation(*arguments, **options)
            self._pass(after)
            return result

        return watched

    def _pass(self, is_moment: bool) -> None:
        self.left -= is_moment
        if is_moment and self.left == 0:
            raise Killed
