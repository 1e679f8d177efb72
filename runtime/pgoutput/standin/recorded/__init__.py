"""Serve recordings and capture files.

- `RecordedSource` is the source for a stand-in server. It reads a recording once when it is opened, unless
  the metadata of the segments suffices, and once for each connection.
"""

from pgoutput.standin.recorded.source import RecordedSource

__all__ = ["RecordedSource"]
