"""Valid streams with one fault, to test software that reads streams.

- `FAULTS` lists the kinds of faults; each is a `Fault`.
- `corruptions` is a Hypothesis strategy of `Corruption` objects: a `Stream` with a random fault at a random
  position.
"""

from logicalrep.testing.faults.model import Corruption as Corruption, Fault as Fault, Stream as Stream
from logicalrep.testing.faults.strategies import FAULTS as FAULTS, corruptions as corruptions
