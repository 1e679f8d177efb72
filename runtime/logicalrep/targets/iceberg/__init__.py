"""Iceberg tables. No other package imports pyiceberg.

- `table`: the table format Iceberg: opens, creates and commits tables.
- `catalogs`: the catalogue that has the tables of a target.
- `columns`: the columns of Iceberg tables, as Arrow schemas with field IDs.
- `partitions`: partition specs, which divide the rows of a table.
- `content`: the files of a version, and which of their rows are deleted.
- `places`: converts URIs of tables to locations, and errors to `ReplicaError`.
- `manifests`: reads snapshots, and writes snapshots with deleted rows, which pyiceberg cannot do.
- `deletes`: position delete files.
- `cleaning`: expires snapshots, and removes files that no snapshot needs.
"""

from __future__ import annotations

from logicalrep._extras import require

require("iceberg", "pyiceberg", "sqlalchemy")

from logicalrep.targets.iceberg.table import IcebergFormat

__all__ = ["IcebergFormat"]
