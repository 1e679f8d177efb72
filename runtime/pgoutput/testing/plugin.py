"""The pytest plugin. pytest loads it in every session, so it imports the rest when a fixture is used."""

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
"""The type of the fixture `pgoutput_stream`."""

StartServer: TypeAlias = "Callable[..., Server]"
"""The type of the fixture `pgoutput_server`."""


@pytest.fixture(scope="session")
def pgoutput_stream() -> MakeStream:
    """A function that gives what a PostgreSQL server sends: a small shop's changes, or those of a scenario.

    `pgoutput_stream(scenario=None, **options)` is a `pgoutput.testing.Stream`: its `messages` are bytes. The
    options are those of `pgoutput.synth.Scenario`, such as `proto_version=1`, `streaming="on"`,
    `two_phase=True`, `binary=True`. The shop is that of `pgoutput.testing.shop`.
    """
    from pgoutput.testing import Stream, shop

    def stream(scenario: Scenario | None = None, **options: Any) -> Stream:
        return Stream.of(shop(**options)) if scenario is None else Stream.of(scenario, **options)

    return stream


@pytest.fixture
def pgoutput_server() -> Iterator[StartServer]:
    """A function that starts a server for replication clients; it listens at its `dsn` until the test ends.

    `pgoutput_server(source=None, *, faults=None, user=None, password=None)` is a `pgoutput.testing.Server`,
    in a process of its own. The source is a `pgoutput.synth.Scenario`, or the path of a capture file or of a
    recording; without one, the shop of `pgoutput.testing.shop`. What goes wrong on purpose is a
    `pgoutput.standin.Faults`.
    """
    from pgoutput.testing import Server, shop

    with ExitStack() as stack:

        def server(source: Scenario | str | Path | None = None, **options: Any) -> Server:
            return stack.enter_context(Server(shop() if source is None else source, **options))

        yield server
