"""Rules that the stream of every PostgreSQL server obeys.

`Checker` checks messages against `RULES` and reports the first violation of each message.
"""

from logicalrep.stream.check.checker import Checker, check
from logicalrep.stream.check.model import Violation as Violation
from logicalrep.stream.check.options import (
    HEADER_BYTES as HEADER_BYTES,
    MAX_BYTES as MAX_BYTES,
    CheckOptions,
)
from logicalrep.stream.check.rules import RULES

__all__ = [
    "RULES",
    "CheckOptions",
    "Checker",
    "check",
]
