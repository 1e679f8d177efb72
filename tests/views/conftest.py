"""Fixtures: recordings of captures, and reading with and without the kernel."""

from tests.columns.conftest import way
from tests.recording.conftest import recorded

__all__ = ["recorded", "way"]
