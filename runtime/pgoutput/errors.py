"""The errors of this package.

::

    PgoutputError
    ├── DecodeError    bytes that are not a message of the expected version and context
    │   └── StreamError    a message where no server sends it
    ├── EncodeError    an object that has no place on the wire of the chosen version
    ├── ScenarioError  what no database does, asked of a synthetic one
    ├── RecordingError    a recording or capture file that is damaged, in use, or another than expected
    ├── ReplicaError      a replica that cannot be continued
    └── ReplicationError   a server that does not give the stream that was asked for
        └── ConnectionLost     connection lost or refused; retryable

Every error says what is wrong, where, and what was expected. Misuse of a function (a wrong argument type,
an impossible option) is a TypeError or ValueError, as in any Python library.
"""

from __future__ import annotations


class PgoutputError(Exception):
    """The base of all errors of this package."""


class DecodeError(PgoutputError):
    """Bytes that are not a message of the expected version and context.

    Attributes:
        message: Name of the message, None where the tag is not known.
        field: Path of the field, as `new[2]` or `columns[0].name`; None where the whole message is meant.
        offset: Offset of the fault from the start of the message, in bytes.
    """

    def __init__(
        self, text: str, *, message: str | None = None, field: str | None = None, offset: int = 0
    ) -> None:
        super().__init__(text)
        self.message = message
        self.field = field
        self.offset = offset


class StreamError(DecodeError):
    """A message where no server sends it: a Commit without Begin, a block inside a block."""

    @classmethod
    def at(cls, message: object, text: str) -> StreamError:
        """The error that `message` cannot stand where it does, because of what `text` says."""
        name = type(message).__name__
        return cls(f"{name}: {text}", message=name)


class EncodeError(PgoutputError):
    """An object that has no place on the wire of the chosen version.

    Attributes:
        message: Name of the object's class.
        field: Path of the field, as `new[2]` or `columns[0].name`; None where the whole message is meant.
    """

    def __init__(self, text: str, *, message: str = "", field: str | None = None) -> None:
        super().__init__(text)
        self.message = message
        self.field = field


class ScenarioError(PgoutputError):
    """What no database does, asked of a synthetic one: it would refuse it, or wait for somebody else."""


class RecordingError(PgoutputError):
    """A recording or capture file is damaged, in use, or not the expected one; the text names it."""


class ReplicaError(PgoutputError):
    """A replica cannot be continued; the text names the target and what to do."""


class ReplicationError(PgoutputError):
    """A server that does not give the stream that was asked for: the text says what to do."""


class ConnectionLost(ReplicationError):
    """Connection lost or refused; retryable."""
