"""The catalogs of a server: published tables, and changes that the stream does not contain.

Imports `client`. The other folders of the recorder import from `catalogs`, not from its modules.

- `catalog`: a description of the catalogs. `queries`: the queries that read the catalogs.
- `publications`: the published tables, with the SQL that copies their rows.
- `changes`: the differences between two readings: altered publications (`publication_changes`), and tables
  whose rows were altered without being sent (`alterations`, `column_changes`, `storage_changes`).
- `incomplete_tables`: tables that lack rows or changes. `pending_tables`: tables that may be incomplete.
- `watch`: a thread that reads the catalogs again and again.
- `ddl_events`: the event trigger that describes statements of DDL in the stream.
"""

from logicalrep.recorder.catalogs.alterations import FRESH_ROOTS_SINCE as FRESH_ROOTS_SINCE
from logicalrep.recorder.catalogs.catalog import (
    Catalog as Catalog,
    CatalogTable as CatalogTable,
    Membership as Membership,
)
from logicalrep.recorder.catalogs.changes import (
    CatalogChanges as CatalogChanges,
    check_publication_oids as check_publication_oids,
    compare_catalogs as compare_catalogs,
    renamed_tables as renamed_tables,
)
from logicalrep.recorder.catalogs.column_changes import (
    following_columns as following_columns,
    with_undescribed as with_undescribed,
    without_undescribed as without_undescribed,
)
from logicalrep.recorder.catalogs.ddl_events import (
    DDL_EVENTS_SINCE as DDL_EVENTS_SINCE,
    Statement as Statement,
    ddl_events_sql as ddl_events_sql,
    install_ddl_events as install_ddl_events,
    parse_statement as parse_statement,
)
from logicalrep.recorder.catalogs.incomplete_tables import (
    incomplete_table as incomplete_table,
    tables_to_copy as tables_to_copy,
    tables_with_earlier_rows as tables_with_earlier_rows,
    tables_without_all_changes as tables_without_all_changes,
)
from logicalrep.recorder.catalogs.pending_tables import (
    PendingTable as PendingTable,
    contradicted as contradicted,
    description_of as description_of,
)
from logicalrep.recorder.catalogs.publication_changes import (
    with_missing_publications as with_missing_publications,
)
from logicalrep.recorder.catalogs.publications import (
    MISSING_PRIVILEGES as MISSING_PRIVILEGES,
    Leaf as Leaf,
    PublishedTable as PublishedTable,
    check_privileges as check_privileges,
    may_read_any as may_read_any,
    published_tables as published_tables,
)
from logicalrep.recorder.catalogs.queries import (
    DDL_EVENTS as DDL_EVENTS,
    query_catalog as query_catalog,
    read_catalog as read_catalog,
)
from logicalrep.recorder.catalogs.watch import CatalogWatch as CatalogWatch
