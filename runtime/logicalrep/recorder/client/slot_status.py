"""The state of a replication slot and of the client that streams from it, as the server sees them."""

from __future__ import annotations

from typing import Final

import msgspec
from psycopg import sql

from logicalrep.recorder.client.connection import Connection

_QUERY: Final = """\
WITH wal AS (
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS lsn
)
SELECT jsonb_build_object(
    'slot', slot_name,
    'active_pid', active_pid,
    'wal_lsn', lsn,
    'acknowledged_lsn', confirmed_flush_lsn,
    'lag_bytes', CASE WHEN confirmed_flush_lsn IS NOT NULL
        THEN greatest(0, pg_wal_lsn_diff(lsn, confirmed_flush_lsn)) END,
    'retained_wal_bytes', CASE WHEN restart_lsn IS NOT NULL
        THEN greatest(0, pg_wal_lsn_diff(lsn, restart_lsn)) END,
    'wal_status', to_jsonb(s) -> 'wal_status',
    'safe_wal_bytes', to_jsonb(s) -> 'safe_wal_size',
    'invalidation_reason', to_jsonb(s) -> 'invalidation_reason',
    'client', application_name,
    'address', client_addr,
    'connected_since', backend_start,
    'state', r.state,
    'oldest_transaction', (
        SELECT jsonb_build_object(
            'pid', l.pid, 'gid', gid, 'user', coalesce(owner, usename), 'state', a.state,
            'seconds', extract(epoch FROM clock_timestamp() - coalesce(prepared, xact_start))
        )
        FROM pg_locks l LEFT JOIN pg_prepared_xacts ON transaction = transactionid
        LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
        ORDER BY age(transactionid) DESC LIMIT 1
    )
)
FROM pg_replication_slots s CROSS JOIN wal LEFT JOIN pg_stat_replication r ON r.pid = active_pid
WHERE slot_name = {}"""


class ServerTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest open transaction on a server, among the transactions that have an xid."""

    pid: int | None
    """Server process of the transaction; None for a prepared transaction."""
    gid: str | None
    """Global identifier of a prepared transaction; None for any other."""
    user: str | None
    """Role that runs the transaction, or has prepared it."""
    state: str | None
    """State of the server process, such as `idle in transaction`; None if prepared or not visible."""
    seconds: float | None
    """Age of the transaction in seconds; None if the role must not see it."""


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a replication slot, and of the client that streams from it."""

    slot: str
    """Name of the slot."""
    active_pid: int | None
    """Server process that streams from the slot; None if no client streams."""
    wal_lsn: str
    """End of the server's WAL."""
    acknowledged_lsn: str | None
    """LSN up to which the client has acknowledged; None for a slot that is being created."""
    lag_bytes: int | None
    """Bytes of WAL from the acknowledged LSN to the end of the server's WAL; None if not known."""
    retained_wal_bytes: int | None
    """Bytes of WAL that the server retains because of the slot; None if the slot has lost WAL."""
    wal_status: str | None
    """Column `wal_status` of pg_replication_slots, such as `reserved`; None before PostgreSQL 13."""
    safe_wal_bytes: int | None
    """Bytes of WAL that the server can write before the slot may lose WAL; None without a limit."""
    invalidation_reason: str | None
    """Reason why the server has invalidated the slot; None for a valid slot."""
    client: str | None
    """Name of the client's application; None if no client streams, or the role must not see it."""
    address: str | None
    """Address of the client; None for a local client, or if `client` is None."""
    connected_since: str | None
    """Time when the client connected, in ISO 8601; None if `client` is None."""
    state: str | None
    """What the server does for the client, such as `streaming` or `catchup`; None if `client` is None."""
    oldest_transaction: ServerTransaction | None = None
    """The oldest open transaction of the server; the slot retains WAL from the transaction's start on."""


def read_slot_status(connection: Connection, slot: str) -> SlotStatus | None:
    """Return the state of a replication slot; None if the slot does not exist.

    Args:
        connection: A connection to the server. Every role may read the slot. To read about its client, the
            role needs the privileges of `pg_monitor`.
        slot: Name of the slot.

    Raises:
        ConnectionLost: The connection was lost.
        ReplicationError: The server refuses the query.
    """
    rows = connection.query(sql.SQL(_QUERY).format(slot))
    return msgspec.json.decode(rows[0][0], type=SlotStatus) if rows else None
