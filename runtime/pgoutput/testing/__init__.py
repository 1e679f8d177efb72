"""For tests of your own software: streams that a server would send, and such with a fault.

`shop` makes an example of a scenario, `scenarios` is a Hypothesis strategy of all kinds of them. `Stream.of`
has what a server sends of one, `corruptions` is a strategy of it with one fault, and `Server` serves one to
real clients. Where this package is installed, pytest has the fixtures `pgoutput_stream` and
`pgoutput_server`.

What is not named here may change at any time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from pgoutput._extras import require

if TYPE_CHECKING:
    from pgoutput.testing.drawn import broken_streams, scenarios, streams
    from pgoutput.testing.example import shop
    from pgoutput.testing.faults import FAULTS, Corruption, Fault, Stream, corruptions
    from pgoutput.testing.options import ScenarioOptions
    from pgoutput.testing.server import Server

__all__ = [
    "FAULTS",
    "Corruption",
    "Fault",
    "ScenarioOptions",
    "Server",
    "Stream",
    "broken_streams",
    "corruptions",
    "scenarios",
    "shop",
    "streams",
]

_MODULES: Final = {
    **dict.fromkeys(("broken_streams", "scenarios", "streams"), "drawn"),
    **dict.fromkeys(("FAULTS", "Corruption", "Fault", "Stream", "corruptions"), "faults"),
    "ScenarioOptions": "options",
    "Server": "server",
    "shop": "example",
}
"""Where they are. They are imported when they are used: pytest loads the plugin in every session."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    require("testing", "hypothesis", "numpy", "pyarrow")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
