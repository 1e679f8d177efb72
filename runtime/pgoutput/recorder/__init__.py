"""Record a replication slot of a live server into segments.

`Recorder` stores first and acknowledges after; a recording goes on where it ended, after any crash of the
recorder or the server. Needs the extra `capture`.
"""

from pgoutput.recorder.events import (
    Connected,
    Event,
    Notice,
    Progress,
    PublicationAltered,
    Reconnecting,
    SnapshotKept,
    Snapshotted,
    Stopped,
    Stored,
    TableIncomplete,
    Waiting,
)
from pgoutput.recorder.options import RecorderOptions
from pgoutput.recorder.recorder import Recorder

__all__ = [
    "Connected",
    "Event",
    "Notice",
    "Progress",
    "PublicationAltered",
    "Reconnecting",
    "Recorder",
    "RecorderOptions",
    "SnapshotKept",
    "Snapshotted",
    "Stopped",
    "Stored",
    "TableIncomplete",
    "Waiting",
]
