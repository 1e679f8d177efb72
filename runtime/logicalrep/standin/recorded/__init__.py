"""Serve recordings and capture files.

- `RecordedSource` is a source for a stand-in server. Creating the source reads all messages,
  unless the metadata of the segments is enough to index the stream. Each connection reads all messages again.
"""

from logicalrep.standin.recorded.source import RecordedSource as RecordedSource
