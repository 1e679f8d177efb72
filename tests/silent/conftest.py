"""Fixtures: one server for all tests, and a new database for each test."""

from __future__ import annotations

from tests.recorder.conftest import lab, server

__all__ = ["lab", "server"]
