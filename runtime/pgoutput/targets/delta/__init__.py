"""Delta tables. No other package imports deltalake.

- `table`: the table format Delta: opens, creates and commits tables.
- `log`: what a commit says of its changes, and the position of a table.
- `actions`, `vectors`: read and write what delta-rs cannot: actions of a commit, and deletion vectors.
- `cleaning`, `folders`: remove files that a table does not need any more, and move and remove tables.
"""

from __future__ import annotations

from pgoutput.targets.delta.table import DeltaFormat

__all__ = ["DeltaFormat"]
