"""The problems that `logicalrep doctor` finds on a server or a machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from logicalrep._text import counted

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
    """SQL or a shell command that solves the problem, or advice in words."""


class Report(msgspec.Struct, frozen=True):
    """Output of `logicalrep doctor`."""

    logicalrep: str
    """Versions of logicalrep and Python."""
    server: str
    """Version of the server; empty without a connection."""
    checks: int
    """Number of checks that were made."""
    findings: tuple[Finding, ...]

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        yield self.logicalrep
        if self.server:
            yield self.server
        for one in self.findings:
            yield f"{one.level:8} {one.found}"
            if one.cost:
                yield f"{'':8} {one.cost}"
            if one.remedy:
                yield f"{'':8} > {one.remedy}"
        counts = {level: sum(one.level == level for one in self.findings) for level in ("error", "warning")}
        errors, warnings = counted(counts["error"], "error"), counted(counts["warning"], "warning")
        yield f"{counted(self.checks, 'check')}: {errors}, {warnings}"
