"""Convert messages to rows for `SparkSession.createDataFrame`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from logicalrep._message_rows import to_row
from logicalrep.messages import Message


def rows(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return a row for each message, for `createDataFrame` with a schema of `logicalrep.schemas.spark`.

    ::

        begins = spark.createDataFrame(rows(begins), BY_MESSAGE["Begin"])
        several = spark.createDataFrame(rows(messages), MESSAGES)

    A row is a dict by column name. A value that its column cannot represent is NULL in its column and text in
    `_rescued_data`, as `logicalrep.schemas.spark` describes.

    Args:
        messages: The messages; with a schema of `BY_MESSAGE`, all must have the schema's class.
    """
    return list(map(to_row, messages))
