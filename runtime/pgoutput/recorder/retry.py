"""Reconnection after errors: the pauses between attempts, and when to give up."""

from __future__ import annotations

import random
import time
from typing import Final

from pgoutput.errors import ReplicationError
from pgoutput.recorder.server_errors import CredentialsRefused

_MIN_PAUSE: Final = 0.5
"""Seconds between the first and the second connection attempt."""

_MAX_PAUSE: Final = 30.0
"""Largest number of seconds between two connection attempts."""


class RetryPolicy:
    """The pauses between connection attempts, and the time after which a recorder gives up.

    Args:
        retry_for: Time after the first error of an outage within which a stream must begin, in seconds.
    """

    def __init__(self, retry_for: float) -> None:
        self._retry_for = retry_for
        self._pause = _MIN_PAUSE
        self._outage_start: float | None = None
        """Time of the first error since the last stream, by time.monotonic(); None without an outage."""
        self._has_streamed = False

    def attempt_begins(self) -> None:
        """Note that a connection attempt begins."""
        self._attempt_start = time.monotonic()

    def stream_begins(self) -> None:
        """Note that the server streams: the connection attempt has succeeded, and the outage is over."""
        self._outage_start = None
        self._has_streamed = True

    def next_pause(self, error: ReplicationError) -> float:
        """Return the seconds to wait before the next connection attempt.

        The pauses grow exponentially, with jitter, up to half a minute.

        Args:
            error: The retryable error that ended the attempt. `CredentialsRefused` is retried only
                if the server has streamed before: an administrator may be replacing the credentials.

        Raises:
            ReplicationError: `error` itself, if there must be no further attempt.
        """
        now = time.monotonic()
        if self._outage_start is None:
            self._outage_start = now
        left = self._outage_start + self._retry_for - now
        if left <= 0 or (isinstance(error, CredentialsRefused) and not self._has_streamed):
            raise error
        if now - self._attempt_start > _MAX_PAUSE:
            self._pause = _MIN_PAUSE
        pause = min(self._pause, left)
        self._pause = min(self._pause * random.uniform(1.5, 2.5), _MAX_PAUSE)
        return pause
