"""Simulate that a process is killed before or after a chosen operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """Raised in place of a signal that kills the process."""


class Kills:
    """Raises `Killed` before or after one of the watched operations.

    Args:
        left: At which moment, from 1: each watched operation has one before it, after it, or both. 0: never.
    """

    def __init__(self, left: int = 0) -> None:
        self.left = left

    def watch(self, operation: Callable[..., Any], *, before: bool = True, after: bool = False) -> Any:
        """Return a watched operation, which may raise `Killed` before it, after it, or at both moments."""

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
