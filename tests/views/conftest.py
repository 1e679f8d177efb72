"""The recordings of captures, and the two ways to read them."""

from tests.columns.conftest import way
from tests.recording.conftest import recorded

__all__ = ["recorded", "way"]
