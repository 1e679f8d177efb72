"""Clients of the stand-in server that `make clients` fetches: Debezium, pgjdbc, asyncpg and one of npm.

`python -m tests.standin.fetched` runs all of them. Each module is a program that reads the slot `lake` or
looks up catalogs, and prints what it has read as JSON.
"""
