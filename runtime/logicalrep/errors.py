"""The exceptions of this package.

::

    LogicalrepError
    ├── DecodeError           bytes are not a valid message of the protocol version
    │   └── StreamError       a message is out of place in the stream
    ├── EncodeError           a message cannot be encoded in the protocol version
    ├── ScenarioError         a synthetic database was asked for an impossible operation
    ├── RecordingError        a recording or capture file is damaged or not the expected one
    │   └── RecordingInUse    another recorder writes the recording; retryable
    ├── ReplicaError          a replica cannot be continued
    └── ReplicationError      a server does not send the requested stream
        ├── ChangesLost       the server cannot continue a recording any more
        └── ConnectionLost    connection lost or refused; retryable
    MissingExtraError         a package is not installed: the text has the command that installs it

The text of an exception says what is wrong, where it is, and what was expected. Misuse of a function (a wrong
argument type, an impossible option) raises TypeError or ValueError.
"""

from __future__ import annotations

__all__ = [
    "ChangesLost",
    "ConnectionLost",
    "DecodeError",
    "EncodeError",
    "LogicalrepError",
    "MissingExtraError",
    "RecordingError",
    "RecordingInUse",
    "ReplicaError",
    "ReplicationError",
    "ScenarioError",
    "StreamError",
]


class LogicalrepError(Exception):
    """Base class of the exceptions of this package."""


class DecodeError(LogicalrepError):
    """Bytes are not a valid message of the expected protocol version, inside or outside a stream block.

    Attributes:
        message: Name of the message, or None if the tag is unknown.
        field: Path of the invalid field (`new[2]`, `columns[0].name`), or None for the whole message.
        offset: Offset of the error from the start of the message, in bytes.
    """

    def __init__(
        self, text: str, *, message: str | None = None, field: str | None = None, offset: int = 0
    ) -> None:
        super().__init__(text)
        self.message = message
        self.field = field
        self.offset = offset


class StreamError(DecodeError):
    """A message is out of place in the stream, such as a Commit without a Begin or nested stream blocks."""

    @classmethod
    def at(cls, message: object, text: str) -> StreamError:
        """Return a StreamError for an out-of-place message; `text` gives the reason."""
        name = type(message).__name__
        return cls(f"{name}: {text}", message=name)


class EncodeError(LogicalrepError):
    """A message cannot be encoded in the chosen protocol version.

    Attributes:
        message: Name of the message's class.
        field: Path of the invalid field (`new[2]`, `columns[0].name`), or None for the whole message.
    """

    def __init__(self, text: str, *, message: str = "", field: str | None = None) -> None:
        super().__init__(text)
        self.message = message
        self.field = field


class ScenarioError(LogicalrepError):
    """A synthetic database was asked for an operation that a real database would refuse or block."""


class RecordingError(LogicalrepError):
    """A recording or capture file is damaged or not the expected one; the text has its path."""


class RecordingInUse(RecordingError):
    """Another recorder writes the recording; retryable, because that recorder may end."""


class ReplicaError(LogicalrepError):
    """A replica cannot be continued; the text names the target and what to do."""


class ReplicationError(LogicalrepError):
    """A server does not send the requested stream; the text says what to do."""


class ChangesLost(ReplicationError):
    """The server cannot continue a recording: it lacks recorded changes, or changes that must come next.

    Record anew, in another folder.
    """


class ConnectionLost(ReplicationError):
    """Connection lost or refused; retryable."""


class MissingExtraError(ModuleNotFoundError):
    """A third-party package is missing; the error text has the shell command that installs it.

    Attributes:
        extra: The extra of `logicalrep` that installs the package.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is missing: {install_line(extra)}", name=package)
        self.extra = extra


def install_line(*extras: str) -> str:
    """Return the shell command that installs `logicalrep` with the given extras."""
    return f"pip install 'logicalrep[{','.join(extras)}]'"
