"""Fixtures: recordings of captures, and running a test with and without the kernel."""

from tests.columns.conftest import with_and_without_kernel
from tests.recording.conftest import recorded

__all__ = ["recorded", "with_and_without_kernel"]
