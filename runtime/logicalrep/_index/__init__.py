"""Index of a batch of messages, with the location of each field and cell.

`logicalrep.columns` and `logicalrep.views` are based on this index.

`index_messages` indexes a batch. `read_texts`, `read_text_columns` and `read_column` read cells as Arrow
arrays, `message_columns` reads messages as rows. `SchemaTracker` and `SchemaVersions` find the schema version
that a change belongs to.
"""

from logicalrep._index.base import (
    MessageIndex as MessageIndex,
    TupleLocations as TupleLocations,
    mask_out as mask_out,
    ordinals as ordinals,
    tag_mask as tag_mask,
)
from logicalrep._index.message_columns import (
    letters as letters,
    message_columns as message_columns,
    scatter as scatter,
)
from logicalrep._index.read import (
    index_messages as index_messages,
    read_column as read_column,
    read_text_columns as read_text_columns,
    read_texts as read_texts,
)
from logicalrep._index.schema_versions import (
    BatchVersions as BatchVersions,
    SchemaTracker as SchemaTracker,
    SchemaVersions as SchemaVersions,
    misfits as misfits,
)
