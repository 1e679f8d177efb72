"""Fixtures for tests of replicas: one server for all tests, and a new database for each test."""

from tests.recorder.conftest import lab, moto, proxy, server

__all__ = ["lab", "moto", "proxy", "server"]
