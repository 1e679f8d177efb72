"""pytest plugin with the fixtures `pgoutput_stream` and `pgoutput_server`.

pytest loads the plugin in every session. To load quickly, the plugin imports other modules only when a
fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pgoutput.synth import Scenario
    from pgoutput.testing.faults import Stream
    from pgoutput.testing.server import Server

MakeStream: TypeAlias = "Callable[..., Stream]"
"""Type of the function that the fixture `pgoutput_stream` returns."""

StartServer: TypeAlias = "Callable[..., Server]"
"""Type of the function that the fixture `pgoutput_server` returns."""


@pytest.fixture(scope="session")
def pgoutput_stream() -> MakeStream:
    """Return a function that returns the stream that a PostgreSQL server sends for a scenario.

    `pgoutput_stream(scenario=None, **options)` returns a `pgoutput.testing.Stream`, whose `messages` are
    bytes. Without a scenario, the stream is that of `pgoutput.testing.shop`. `options` are options of
    `pgoutput.synth.Scenario`, such as `proto_version=2`, `streaming="on"`, `two_phase=True` or `binary=True`.
    """
    from pgoutput.testing import Stream, shop

    def stream(scenario: Scenario | None = None, **options: Any) -> Stream:
        return Stream.of(shop(**options)) if scenario is None else Stream.of(scenario, **options)

    return stream


@pytest.fixture
def pgoutput_server() -> Iterator[StartServer]:
    """Return a function that starts a stand-in server for replication clients.

    `pgoutput_server(source=None, *, faults=None, user=None, password=None)` returns a
    `pgoutput.testing.Server`, which runs in a process of its own until the test ends. Clients connect to
    the `dsn` of the server. `source` is a `pgoutput.synth.Scenario`, or the path of a capture file or
    recording; the default is `pgoutput.testing.shop`. `faults` is a `pgoutput.standin.Faults` with the faults
    to inject.
    """
    from pgoutput.testing import Server, shop

    with ExitStack() as stack:

        def server(source: Scenario | str | Path | None = None, **options: Any) -> Server:
            return stack.enter_context(Server(shop() if source is None else source, **options))

        yield server
