"""pytest plugin with the fixtures `logicalrep_stream` and `logicalrep_server`.

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

    from logicalrep.synth import Scenario
    from logicalrep.testing.faults import Stream
    from logicalrep.testing.server import Server

MakeStream: TypeAlias = "Callable[..., Stream]"
"""Type of the function that the fixture `logicalrep_stream` returns."""

StartServer: TypeAlias = "Callable[..., Server]"
"""Type of the function that the fixture `logicalrep_server` returns."""


@pytest.fixture(scope="session")
def logicalrep_stream() -> MakeStream:
    """Return a function that returns the stream that a PostgreSQL server sends for a scenario.

    `logicalrep_stream(scenario=None, **options)` returns a `logicalrep.testing.Stream`, whose `messages` are
    bytes. Without a scenario, the stream is that of `logicalrep.testing.shop`. `options` are options of
    `logicalrep.synth.Scenario`, such as `proto_version=2`, `streaming="on"`, `two_phase=True` or
    `binary=True`.
    """
    from logicalrep.testing import Stream, shop

    def stream(scenario: Scenario | None = None, **options: Any) -> Stream:
        return Stream.of(shop(**options)) if scenario is None else Stream.of(scenario, **options)

    return stream


@pytest.fixture
def logicalrep_server() -> Iterator[StartServer]:
    """Return a function that starts a stand-in server for replication clients.

    `logicalrep_server(source=None, *, faults=None, user=None, password=None)` returns a
    `logicalrep.testing.Server`, which runs in a process of its own until the test ends. Clients connect to
    the `dsn` of the server. `source` is a `logicalrep.synth.Scenario`, or the path of a capture file or
    recording; the default is `logicalrep.testing.shop`. `faults` is a `logicalrep.standin.Faults` with the
    faults to inject.
    """
    from logicalrep.testing import Server, shop

    with ExitStack() as stack:

        def server(source: Scenario | str | Path | None = None, **options: Any) -> Server:
            return stack.enter_context(Server(shop() if source is None else source, **options))

        yield server
