"""Register a query in the recording that it reads, so that `logicalrep prune` keeps the needed segments."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec

from logicalrep.errors import RecordingError, ReplicaError
from logicalrep.recording import STATE_FILE, Location, Reader, Recording, reader_file
from logicalrep.replica.ownership import Owner
from logicalrep.targets import remove_file, write_file

_LOG: Final = logging.getLogger(__name__)


class Registration:
    """The registration of a query in a recording, so that the segments that it needs are not pruned.

    Only recordings that can be pruned have registrations: those that were made by the recorder.

    Args:
        recording: The recording.
        target: The folder that the query writes to.
        owner: The owner of the target; its ID becomes that of the registered reader.
    """

    def __init__(self, recording: Recording, target: Location, owner: Owner) -> None:
        self._recording = recording
        self._target = target
        self._owner = owner
        self._is_prunable = (recording.location / STATE_FILE).is_file
        self._needed: int | None = None
        """Number of the segment that was registered as last read; None before the first registration."""

    def update(self, segment: int) -> None:
        """Store up to which segment the query has read, then check that the next segment was not pruned.

        If the query cannot write to the recording, it stays unregistered, and only a warning is logged:
        `logicalrep prune` may then remove segments that the query needs.

        Args:
            segment: Number of the last segment whose changes all tables have; 0 for none.

        Raises:
            RecordingError: The segments that the query needs next were pruned; the registration is removed.
        """
        if not self._is_prunable:
            return
        if segment == self._needed:
            return
        file = reader_file(self._recording.location, self._owner.id)
        try:
            self._recording.check_not_pruned(segment + 1)
            self._write(file, segment)
            self._recording.check_not_pruned(segment + 1)  # a prune may have ended before `_write`
        except RecordingError:
            with suppress(ReplicaError):
                remove_file(file)
            raise
        self._needed = segment

    def _write(self, file: Location, segment: int) -> None:
        reader = Reader(
            id=self._owner.id,
            kind=self._owner.output,
            target=str(self._target) if "://" in self._target.place else os.path.abspath(self._target.path),
            segment=segment,
            lsn=self._end_lsn(segment),
            time=datetime.now(UTC).isoformat(" ", "seconds"),
            host=socket.gethostname(),
        )
        try:
            write_file(file, msgspec.json.encode(reader).decode())
        except ReplicaError as error:
            if self._needed is None:
                _LOG.warning("the replica is not registered, and segments can be pruned too early: %s", error)

    def _end_lsn(self, segment: int) -> int:
        beginning = self._recording.beginning
        if segment < beginning.segment:
            return beginning.lsn
        return self._recording.metadata([segment])[0].end_lsn
