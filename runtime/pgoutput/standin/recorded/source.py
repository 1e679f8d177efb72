"""Recordings as sources: capture files, and segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from pgoutput.errors import ReplicationError
from pgoutput.messages import PrimaryKeepalive, Relation
from pgoutput.standin.recorded.envelopes import with_lsns
from pgoutput.standin.recorded.plan import Plan, plan
from pgoutput.standin.recorded.recordings import ServedRecording, open_recording
from pgoutput.standin.recorded.resumption import resume
from pgoutput.standin.source import Sent, Wanted


class RecordedSource:
    """Serves a recording to clients that ask for it as it was asked for when it was recorded.

    It is read once when it is opened, unless its segments tell enough of themselves, and once for each
    connection; it is never kept in memory. Options may differ as far as the same bytes follow from them:
    `streaming` for instance, where nothing was streamed.

    Attributes:
        server_version: As `Source` has it, and so the others.

    Args:
        path: A capture file, or the folder of a recording, or the only segment of one.

    Raises:
        RecordingError: It cannot be read, or is not all of a stream.
    """

    def __init__(self, path: str | Path) -> None:
        self._recording: ServedRecording = open_recording(path)
        self._plan: Plan = plan(self._recording)
        recording = self._recording
        self.server_version = recording.server_version
        self.system_identifier = recording.system_identifier
        self.database = recording.database
        self.publications: tuple[str, ...] | None = recording.asked.publication_names or None
        self.tables: tuple[Relation, ...] = tuple(self._plan.relations.values())
        self.start_lsn = self._plan.start_lsn
        self.end_lsn = self._plan.end_lsn

    def start(self, wanted: Wanted, after_lsn: int) -> Iterator[Sent]:
        """As `Source.start`."""
        recording, found, asked = self._recording, self._plan, self._recording.asked
        wrong = [name for name, agrees in _AGREES.items() if not agrees(found, asked, wanted)]
        if wrong:
            different = ", ".join(f"{name} {_shown(getattr(wanted, name))}" for name in wrong)
            said = ", ".join(f"{name} {_shown(getattr(asked, name))}" for name in ("proto_version", *_AGREES))
            raise ReplicationError(
                f"this stream was recorded with {said}: ask for that, and not for {different}"
            )
        if self.publications and set(wanted.publication_names) != set(self.publications):
            raise ReplicationError(
                f"this stream was recorded with the publications {', '.join(self.publications)}: "
                "ask for all of them"
            )
        received = recording.received() if found.has_lsns else with_lsns(recording, found.start_lsn)
        sent = resume(received, recording, found, after_lsn)
        return chain(sent, [PrimaryKeepalive(found.end_lsn, 0, False)])


Agrees = Callable[[Plan, Wanted, Wanted], bool]


def _streaming(found: Plan, asked: Wanted, wanted: Wanted) -> bool:
    """Streamed blocks look alike, but for the tail of a Stream Abort; without any, nobody can tell."""
    if wanted.streaming == asked.streaming or ord("S") not in found.tags:
        return True
    return wanted.streaming != "off" and ord("A") not in found.tags


def _same_or_without(name: str, tags: bytes, lesser: object) -> Agrees:
    """Options agree if they are the same; or if less is asked for, and the recording has nothing more."""

    def agrees(found: Plan, asked: Wanted, wanted: Wanted) -> bool:
        value = getattr(wanted, name)
        return value == getattr(asked, name) or (value == lesser and found.tags.isdisjoint(tags))

    return agrees


_AGREES: Final[Mapping[str, Agrees]] = {
    "streaming": _streaming,
    "two_phase": _same_or_without("two_phase", b"bPKrp", False),
    "binary": lambda found, asked, wanted: wanted.binary == asked.binary,
    "messages": _same_or_without("messages", b"M", False),
    "origin": _same_or_without("origin", b"O", "none"),
}
"""The options that decide what the bytes are. The protocol version does not, by itself."""


def _shown(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
