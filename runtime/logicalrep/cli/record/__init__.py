"""Commands that write and prune recordings: `record`, `snapshot`, `prune` and `install-ddl-events`."""
