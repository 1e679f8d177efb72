"""The recordings of captures."""

from tests.segments.conftest import recorded

__all__ = ["recorded"]
