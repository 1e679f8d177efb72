"""Iceberg tables. No other package imports pyiceberg.

- `table`: Iceberg tables as the tables of a target.
- `catalogs`: the catalogue that has the tables of a target.
- `columns`: the columns of Iceberg tables, as Arrow schemas with field IDs.
- `content`: the files of a version, and which of their rows are deleted.
- `places`: where tables are, as URIs and as locations.
- `manifests`: the files of a snapshot, and what pyiceberg does not write: snapshots with deleted rows.
- `deletes`: position delete files.
- `cleaning`: expires snapshots, and removes files that no snapshot needs.
"""

from __future__ import annotations

from pgoutput._extras import require

require("iceberg", "pyiceberg", "sqlalchemy")

from pgoutput.targets.iceberg.table import IcebergFormat

__all__ = ["IcebergFormat"]
