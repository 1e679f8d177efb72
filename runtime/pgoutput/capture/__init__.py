"""Record a replication slot of a live server into segments.

`Recorder` stores first and acknowledges after; a recording goes on where it ended, after any crash of the
recorder or the server. Needs the extra `capture`.
"""

from pgoutput.capture.events import (
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
from pgoutput.capture.options import Options
from pgoutput.capture.recorder import Recorder

__all__ = [
    "Connected",
    "Event",
    "Notice",
    "Options",
    "Progress",
    "PublicationAltered",
    "Reconnecting",
    "Recorder",
    "SnapshotKept",
    "Snapshotted",
    "Stopped",
    "Stored",
    "TableIncomplete",
    "Waiting",
]
