"""Index of a batch of messages: where each field and cell is.

`pgoutput.columns` and `pgoutput.views` are based on this index.

`index_messages` indexes a batch. `read_texts`, `read_text_columns` and `read_column` read cells as Arrow
arrays, `message_columns` reads messages as rows. `SchemaTracker` and `SchemaVersions` find the schema version
that a change belongs to.
"""

from pgoutput._index.base import (
    IS_SCHEMA_MESSAGE,
    MessageIndex,
    TupleLocations,
    mask_out,
    ordinals,
    tag_mask,
)
from pgoutput._index.kernel import KernelIndex
from pgoutput._index.message_columns import letters, message_columns, scatter
from pgoutput._index.pure import PureIndex
from pgoutput._index.read import index_messages, read_column, read_text_columns, read_texts
from pgoutput._index.schema_versions import (
    BatchVersions,
    SchemaTracker,
    SchemaVersions,
    misfits,
)

__all__ = [
    "IS_SCHEMA_MESSAGE",
    "BatchVersions",
    "KernelIndex",
    "MessageIndex",
    "PureIndex",
    "SchemaTracker",
    "SchemaVersions",
    "TupleLocations",
    "index_messages",
    "letters",
    "mask_out",
    "message_columns",
    "misfits",
    "ordinals",
    "read_column",
    "read_text_columns",
    "read_texts",
    "scatter",
    "tag_mask",
]
