"""Profiles of common workloads, and the stream options of a workload that has all kinds of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from logicalrep.synth.programs import Operations
from logicalrep.synth.workload.definition import Mix, Profile, Range
from logicalrep.versions import OPTIONS

PROFILES: Final[Mapping[str, Profile]] = {
    "everything": Profile(
        tables=3,
        changes=Range(1, 6),
        large=0.02,
        large_changes=120,
        varied=0.7,
        operations=Operations(truncate=3),
    ),
    "oltp": Profile(changes=Range(1, 12), mix=Mix(4, 5, 1), value_sizes=Range(4, 40), varied=0.001),
    "bulk": Profile(tables=4, changes=Range(500, 2_000), mix=Mix(1, 0, 0), large=0.02, large_changes=20_000),
    "iot": Profile(
        tables=4,
        changes=Range(1, 50),
        mix=Mix(1, 0, 0),
        value_sizes=Range(4, 12),
        large=0,
        replica_identity="nothing",
    ),
}
"""Profiles by name. `everything`: all kinds and forms of messages. `oltp`: many short transactions. `bulk`:
loads of many rows. `iot`: measurements that are only inserted."""

MAX_SMALL: Final = 10_000
"""Largest number of transactions for which the default profile is `everything`."""


def default_profile(transactions: int) -> str:
    """Return the name of the default profile for a number of transactions."""
    return "everything" if transactions <= MAX_SMALL else "oltp"


_ALL_MESSAGES: Final = (
    ("streaming", "parallel"),
    ("streaming", "on"),
    ("two_phase", "on"),
    ("messages", "on"),
)
"""Options that add messages to a stream. The first supported value of each option is used."""


def all_messages(server: int, proto_version: int) -> dict[str, Any]:
    """Return the stream options with which servers of a major version send all kinds of messages."""
    options: dict[str, Any] = {}
    for name, value in _ALL_MESSAGES:
        need = OPTIONS[name][value]
        if need.server <= server and need.proto_version <= proto_version:
            options.setdefault(name, True if value == "on" and name != "streaming" else value)
    return options
