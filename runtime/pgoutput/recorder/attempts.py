"""When to connect again after an error, and when to give up."""

from __future__ import annotations

import random
import time
from typing import Final

from pgoutput.errors import ReplicationError
from pgoutput.recorder.failures import CredentialsRefused

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0


class Attempts:
    """Connection attempts of one run.

    Args:
        retry_for: Seconds after the first error of an outage in which an attempt must begin to stream.
    """

    def __init__(self, retry_for: float) -> None:
        self._retry_for = retry_for
        self._pause = _FIRST_PAUSE
        self._outage: float | None = None
        """When the first error after the last stream came, as time.monotonic()."""
        self._has_streamed = False

    def begin(self) -> None:
        """Note that an attempt begins."""
        self._began = time.monotonic()

    def streams(self) -> None:
        """Note that the attempt has begun to stream."""
        self._outage = None
        self._has_streamed = True

    def pause(self, error: ReplicationError) -> float:
        """Return the seconds until the next attempt: more after each, and at most half a minute.

        Args:
            error: A retryable error, which ended the attempt. Refused credentials are retryable after a
                stream of this run only: then they may be about to be replaced.

        Raises:
            ReplicationError: The error itself, if there is to be no further attempt.
        """
        now = time.monotonic()
        if self._outage is None:
            self._outage = now
        left = self._outage + self._retry_for - now
        if left <= 0 or (isinstance(error, CredentialsRefused) and not self._has_streamed):
            raise error
        if now - self._began > _LONGEST_PAUSE:
            self._pause = _FIRST_PAUSE
        pause = min(self._pause, left)
        self._pause = min(self._pause * random.uniform(1.5, 2.5), _LONGEST_PAUSE)
        return pause
