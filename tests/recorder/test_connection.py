"""If a connection is lost, the recorder reads all received messages before the error is raised."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from logicalrep import compiled
from logicalrep.columns import XLogDataBatch
from logicalrep.errors import ConnectionLost, ReplicationError
from logicalrep.messages import PrimaryKeepalive, StandbyStatusUpdate, XLogData
from logicalrep.recorder.client.connection import Connection
from logicalrep.standin import Faults, StandIn
from tests.standin.clients import COMMAND, create_slot
from tests.standin.streams import Repeated


class Failing(Repeated):
    """A stream of the stand-in server that ends with an error after 50 messages."""

    def stream(self, *, after_lsn: int = 0, **options: Any) -> Iterator[XLogData | PrimaryKeepalive]:
        for number, one in enumerate(super().stream(after_lsn=after_lsn, **options)):
            if number == 50:
                raise ValueError("out of rows")
            yield one


@contextmanager
def streaming(server: StandIn) -> Iterator[Connection]:
    """Start to stream on a new connection; wait until its socket has received the whole stream."""
    create_slot(server.dsn)
    with Connection(server.dsn, replication=True) as connection:
        connection.start_replication(COMMAND)
        time.sleep(0.5)  # so that the end is received with the messages
        yield connection


def payloads(received: XLogDataBatch) -> list[bytes]:
    found: list[bytes] = received.data.to_pylist()
    return found


@pytest.mark.parametrize("kernel", [compiled.kernel, None], ids=["socket", "libpq"])
@pytest.mark.parametrize(
    ("stream", "faults", "error", "text"),
    [
        (Repeated(1), Faults(drop_after=50), ConnectionLost, "server closed the connection unexpectedly"),
        (Failing(1), Faults(), ReplicationError, "out of rows"),
    ],
)
def test_messages_before_an_error_are_received_first(
    stream: Repeated,
    faults: Faults,
    error: type[ReplicationError],
    text: str,
    kernel: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "kernel", kernel)
    with StandIn(stream, faults=faults) as server, streaming(server) as connection:
        received = payloads(connection.receive())
        while len(received) < 50:
            received += payloads(connection.receive())
        assert received == stream.payloads()[:50]
        # Every later use raises the error.
        for use in (
            connection.receive,
            connection.fileno,
            connection.end_replication,
            lambda: connection.send(
                StandbyStatusUpdate(
                    written_lsn=0, flushed_lsn=0, applied_lsn=0, send_time=0, reply_requested=False
                )
            ),
        ):
            with pytest.raises(error, match=text) as caught:
                use()
            assert type(caught.value) is error
