"""Column functions for DataFrames with messages."""

from __future__ import annotations

from pyspark.sql import Column, functions


def lsn_text(column: str | Column) -> Column:
    """Return LSNs as PostgreSQL writes them, such as `16/B374D848`; NULL for NULL.

    Args:
        column: A column of type long, such as `end_lsn`.
    """
    lsn = functions.col(column) if isinstance(column, str) else column
    high, low = functions.shiftrightunsigned(lsn, 32), lsn.bitwiseAND(functions.lit(0xFFFFFFFF))
    return functions.concat(functions.hex(high), functions.lit("/"), functions.hex(low))
