"""Rules that the stream of every PostgreSQL server obeys.

`Checker` checks messages against `RULES` and reports the first violation of each message.
"""

from pgoutput.stream.check.checker import Checker, check
from pgoutput.stream.check.model import Violation as Violation
from pgoutput.stream.check.options import (
    HEADER_BYTES as HEADER_BYTES,
    MAX_BYTES as MAX_BYTES,
    CheckOptions,
)
from pgoutput.stream.check.rules import RULES

__all__ = [
    "RULES",
    "CheckOptions",
    "Checker",
    "check",
]
