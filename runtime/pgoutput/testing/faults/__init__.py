"""Legal streams with one fault, for tests of what reads streams.

`FAULTS` are the ways to corrupt a stream, `corruptions` draws one of them and its place.
"""

from pgoutput.testing.faults.drawn import FAULTS, corruptions
from pgoutput.testing.faults.model import Corruption, Fault, Stream

__all__ = ["FAULTS", "Corruption", "Fault", "Stream", "corruptions"]
