"""Test vectors against other decoders of PostgreSQL's logical replication protocol: `make conformance`."""
