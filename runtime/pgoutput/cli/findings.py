"""What `pgoutput doctor` finds on a server or a machine."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Level: TypeAlias = Literal["error", "warning", "advice"]
"""Levels of findings, the worst first."""


class Finding(msgspec.Struct, frozen=True):
    """A problem that a check has found, and its remedy."""

    level: Level
    """`error` if recording, copying or verifying fails, `warning` if data or the server are at risk."""
    check: str
    """Name of the check."""
    found: str
    cost: str
    """What happens if nothing is done."""
    remedy: str
    """SQL or a shell command that helps, or what else to do."""
