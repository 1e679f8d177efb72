"""Whether a stream is one that a server sends, by rules that each have a name.

`Checker` holds messages against `RULES`; what breaks one is a `Violation`, with its place.
"""

from pgoutput.stream.check.checker import Checker, check
from pgoutput.stream.check.model import Rule, Violation
from pgoutput.stream.check.options import CheckOptions
from pgoutput.stream.check.rules import RULES

__all__ = ["RULES", "CheckOptions", "Checker", "Rule", "Violation", "check"]
