"""Tools to test software that reads streams: valid streams, streams with a fault, and a stand-in server.

- `shop` returns an example scenario. `scenarios` is a Hypothesis strategy of random scenarios.
- `Stream.of` returns the stream that a server sends for a scenario. `streams` is a strategy of the streams
  of random scenarios.
- `broken_streams` is a strategy of streams with one fault. `corruptions(stream)` is a strategy that applies
  one fault to `stream`. `FAULTS` lists the kinds of faults.
- `Server` serves a scenario or recording to real replication clients, in a process of its own.
- The pytest fixtures `logicalrep_stream` and `logicalrep_server` are available wherever logicalrep is
  installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from logicalrep._extras import require

if TYPE_CHECKING:
    from logicalrep.testing.example import shop
    from logicalrep.testing.faults import FAULTS, Corruption, Stream, corruptions
    from logicalrep.testing.server import Server
    from logicalrep.testing.strategies import broken_streams, scenarios, streams

__all__ = [
    "FAULTS",
    "Corruption",
    "Server",
    "Stream",
    "broken_streams",
    "corruptions",
    "scenarios",
    "shop",
    "streams",
]

_MODULES: Final = {
    **dict.fromkeys(("broken_streams", "scenarios", "streams"), "strategies"),
    **dict.fromkeys(("FAULTS", "Corruption", "Stream", "corruptions"), "faults"),
    "Server": "server",
    "shop": "example",
}
"""Submodules by public name. A submodule is imported when one of its names is first used, so that pytest,
which imports this package in every session, starts quickly."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    require("testing", "duckdb", "hypothesis", "numpy", "pyarrow")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
