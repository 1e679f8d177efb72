"""What all connections of a stand-in share."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pgoutput.standin.authentication import Verifier
from pgoutput.standin.faults import Faults
from pgoutput.standin.protocol import Refused
from pgoutput.standin.slots import Slots
from pgoutput.standin.source import Source

if TYPE_CHECKING:
    from pgoutput.standin.streaming import WalSender


class Hub:
    """The state of a stand-in.

    Attributes:
        source: What is served.
        faults: What goes wrong.
        verifier: Of the only user that there is; None if everybody is trusted.
        sender_timeout: wal_sender_timeout in seconds; 0 for none.
        settings: Values of settings that differ from the usual ones, or that are not there otherwise.
        started: When it was started.
        slots: The replication slots.
        senders: The streams, by the process ids of their connections.
    """

    def __init__(
        self,
        source: Source,
        faults: Faults,
        verifier: Verifier | None,
        sender_timeout: float,
        settings: Mapping[str, str],
    ) -> None:
        self.source = source
        self.faults = faults
        self.verifier = verifier
        self.sender_timeout = sender_timeout
        self.settings = settings
        self.started = datetime.now(UTC).isoformat(" ")
        self.slots = Slots()
        self.senders: dict[int, WalSender] = {}
        self._created: list[str] = []
        self._pids = itertools.count(1001)
        self._secrets: dict[int, int] = {}

    def publications(self, asked: Iterable[str] = ()) -> Sequence[str]:
        """The publications; where any name is accepted, those that were created, and those asked for."""
        return self.source.publications or list(dict.fromkeys((*self._created, *asked)))

    def create_publication(self, name: str) -> None:
        """Take note of a publication, where any name is accepted.

        Raises:
            Refused: There is one of that name, or the source has its own.
        """
        if name in self.publications():
            raise Refused("42710", f'publication "{name}" already exists')
        if self.source.publications is not None:
            raise Refused(
                "0A000",
                f'the stand-in serves a stream of {", ".join(self.source.publications)}, not of "{name}"',
            )
        self._created.append(name)

    def check_plugin(self, plugin: str) -> None:
        """Check that an output plugin may be used (StartupDecodingContext).

        Raises:
            Refused: The setting output_plugin_libraries is there, and does not name it.
        """
        allowed = self.settings.get("output_plugin_libraries", plugin)
        if plugin not in (name.strip() for name in allowed.split(",")):
            raise Refused(
                "42501",
                f'library "{plugin}" may not be used as an output plugin',
                "If it is safe for all REPLICATION users to use this library as an output plugin, add it to "
                '"output_plugin_libraries" and reload the server configuration.',
            )

    def enter(self) -> tuple[int, int]:
        """A process id and a secret key for a new connection."""
        pid = next(self._pids)
        self._secrets[pid] = secrets.randbits(32)
        return pid, self._secrets[pid]

    def leave(self, pid: int) -> None:
        """Forget a connection, and its temporary slots."""
        del self._secrets[pid]
        self.slots.forget(pid)

    def cancel(self, pid: int, secret: int) -> None:
        """What a CancelRequest asks for, if its key is right."""
        if self._secrets.get(pid) == secret and pid in self.senders:
            self.senders[pid].cancel()
