"""Readers of Delta and Iceberg tables that `make readers` fetches: Polars and DuckDB."""
