"""Serve recordings and capture files.

- `RecordedSource` is a source for a stand-in server. It reads the whole recording when it is created, unless
  the metadata of the segments suffices, and again for each connection.
"""

from pgoutput.standin.recorded.source import RecordedSource

__all__ = ["RecordedSource"]
