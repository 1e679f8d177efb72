"""Delta tables. No other package imports deltalake.

- `table`: Delta tables as the tables of a target.
- `log`: what a commit says of its changes, and the position of a table.
- `actions`, `vectors`: what delta-rs does not write: the actions of a commit, and deletion vectors.
- `cleaning`, `folders`: remove files that a table does not need any more, and move and remove tables.
"""

from __future__ import annotations

from pgoutput.targets.delta.table import DeltaFormat

__all__ = ["DeltaFormat"]
