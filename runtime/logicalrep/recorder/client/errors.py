"""Errors of servers and of connection attempts, and which of them are retryable."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

import psycopg
from psycopg import pq, sql

from logicalrep._text import REMEDY, one_line
from logicalrep.errors import ConnectionLost, ReplicationError

_RETRYABLE: Final = (
    "08",  # connection failures
    "40001",  # a conflict with recovery, on a standby
    *("53000", "53100", "53200", "53300"),  # a lack of resources, but not 53400, a limit by configuration
    *("57P01", "57P02", "57P03"),  # a server that shuts down or starts up
    "55006",  # a slot that is in use
)
"""SQLSTATEs of retryable errors, and prefixes of such SQLSTATEs."""

_INSUFFICIENT_PRIVILEGE: Final = "42501"

_ALLOWED_PLUGINS: Final = "output_plugin_libraries"
"""Name of the server setting that lists the allowed output plugins, in minor releases since August 2026.

The error for a plugin that is not allowed has this name in its detail and hint, in every language.
"""

_DECODING: Final = '"pgoutput"'
"""Text by which the context of an error of logical decoding is recognized, in every language."""

_CREDENTIALS: Final = re.compile(
    "authentication failed for user|no password supplied|channel binding|certificate|private key"
)
"""Pattern for errors of connection attempts that are caused by a password or certificate."""

_PERMANENT: Final = re.compile(
    'role ".*" (does not exist|is not permitted to log in)|database ".*" does not exist'
    "|no pg_hba.conf entry|pg_hba.conf rejects|permission denied|must be superuser or replication role"
    "|server does not support SSL|invalid .*value|invalid connection option"
    "|definition of service|service file|unsupported startup parameter: replication"
)
"""Pattern for errors of connection attempts that are not retryable.

libpq does not keep the SQLSTATE of these errors. Errors in other languages than English do not match, and are
therefore retried.
"""

_RUN: Final = "a superuser has to run: "
_CREATE_ROLE: Final = "CREATE ROLE {role} LOGIN REPLICATION PASSWORD '…'"

_NO_POOLER: Final = (
    "a pooler refuses replication connections: connect to the server itself (with Neon, "
    "the host without -pooler), or let PgBouncer 1.23 or later pass them on"
)

_REMEDIES: Final = {
    "unsupported startup parameter: replication": _NO_POOLER,
    "is not permitted to log in": f"{_RUN}ALTER ROLE {{role}} LOGIN",
    "must be superuser or replication role": f"{_RUN}ALTER ROLE {{role}} REPLICATION",
    "permission denied to start WAL sender": f"{_RUN}ALTER ROLE {{role}} REPLICATION",
    "does not have CONNECT privilege": f"{_RUN}GRANT CONNECT ON DATABASE {{database}} TO {{role}}",
    "role {role} does not exist": f"{_RUN}{_CREATE_ROLE}",
    "password authentication failed": "correct the password in the DSN, PGPASSWORD or ~/.pgpass, whichever "
    f"comes first; or {_RUN}ALTER ROLE {{role}} PASSWORD '…'; or, if the role does not exist, {_CREATE_ROLE}",
    "no password supplied": "put the password into ~/.pgpass, PGPASSWORD or the DSN",
    "requested standby connections exceeds": "end unused walsenders (pg_stat_replication), or "
    f"{_RUN}ALTER SYSTEM SET max_wal_senders = …; then restart the server",
}
"""What lets a role connect, by the part of the English error text that shows the cause."""

_QUERY_REMEDIES: Final = {
    ("42601", "IDENTIFY_SYSTEM"): _NO_POOLER,
    ("22P05", ""): "UTF-8 lacks a character of a row: replace it on the server; if this was not a copy, the "
    "stream sends the old value again: record anew in another folder and from a new slot",
}
"""What lets a query or the stream go on, by SQLSTATE and a part of the error text."""

_MISSING_ENTRY: Final = re.compile(
    r'no pg_hba\.conf entry for host "(.+?)", user "(.+?)", database "(.+?)"(?:, (SSL (?:encryption|on)))?'
)
"""Pattern for the error that pg_hba.conf has no matching line; the last group is empty without TLS."""

_MULTIPLE_ATTEMPTS: Final = "\nMultiple connection attempts failed. All failures were:\n- host: "
"""Text that psycopg puts before the errors of all attempts, if a DSN has several servers or addresses."""


class ErrorFields(NamedTuple):
    """Fields of an error or notice (Error and Notice Message Fields); an empty text for an absent field."""

    severity: str
    sqlstate: str
    message: str
    detail: str
    hint: str
    context: str
    function: str
    """Name of the C function that reports the error or notice."""

    @classmethod
    def of_contents(cls, contents: bytes) -> Self:
        """Return the fields in the contents of an ErrorResponse or NoticeResponse."""
        found = {field[:1]: field[1:] for field in contents.split(b"\0")}
        return cls(*(_text(found.get(kind)) for kind in _FIELDS.values()))

    @classmethod
    def of_result(cls, result: pq.abc.PGresult) -> Self:
        """Return the fields of a result of libpq; libpq's error message replaces an absent message field."""
        fields = cls(*(_text(result.error_field(name)) for name in _FIELDS))
        return fields._replace(message=fields.message or _text(result.error_message))

    @property
    def text(self) -> str:
        """The message and the hint, on one line."""
        return one_line(f"{self.message} ({self.hint})" if self.hint else self.message)


_FIELDS: Final = {
    pq.DiagnosticField.SEVERITY_NONLOCALIZED: b"V",
    pq.DiagnosticField.SQLSTATE: b"C",
    pq.DiagnosticField.MESSAGE_PRIMARY: b"M",
    pq.DiagnosticField.MESSAGE_DETAIL: b"D",
    pq.DiagnosticField.MESSAGE_HINT: b"H",
    pq.DiagnosticField.CONTEXT: b"W",
    pq.DiagnosticField.SOURCE_FUNCTION: b"R",
}
"""Maps libpq's name of each field to the field's type byte in messages, in the order of `ErrorFields`."""


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="backslashreplace")


class UndefinedObject(ReplicationError):
    """An object that a statement or the stream names does not exist (SQLSTATE 42704)."""


class LockNotAvailable(ReplicationError):
    """Another transaction held a lock for longer than lock_timeout (SQLSTATE 55P03)."""


class PermissionDenied(ReplicationError):
    """The role lacks a privilege."""


class LateRefusal(ReplicationError):
    """A refusal that is retryable if the server has streamed before."""


class CredentialsRefused(LateRefusal):
    """The password or certificate was refused or is missing; retryable if the server has streamed before."""


class PublicationMissing(LateRefusal):
    """A publication does not exist; retryable if the server has streamed before: it may have been renamed."""


_CLASSES: Final = {
    "42704": UndefinedObject,
    "55P03": LockNotAvailable,
    _INSUFFICIENT_PRIVILEGE: PermissionDenied,
}
"""Exception classes for errors that are not retryable, by SQLSTATE; ReplicationError for all others."""


def error_of_attempt(error: psycopg.OperationalError) -> ReplicationError:
    """Return the exception to raise for a failed connection attempt.

    Args:
        error: The error that psycopg raised, with the errors of all servers and addresses.

    Returns:
        ConnectionLost if at least one server may accept a later attempt. Otherwise CredentialsRefused if one
        of the servers refused a password or certificate, else ReplicationError.
    """
    text = f"no connection: {one_line(str(error))}"
    if remedy := _remedy(text, error.pgconn):
        text += f"{REMEDY}{remedy}"
    last, _, attempts = str(error).partition(_MULTIPLE_ATTEMPTS)
    servers: dict[str, list[str]] = {}
    for attempt in attempts.split("\n- host: ") if attempts else [last]:
        server, found, reason = attempt.partition(", hostaddr: ")
        servers.setdefault(server if found else "", []).append(reason if found else attempt)
    classes = {_class_of_refusal(reasons) for reasons in servers.values()}
    return max(classes, key=(ReplicationError, CredentialsRefused, ConnectionLost).index)(text)


def _remedy(text: str, connection: pq.abc.PGconn | None) -> str:
    """Return what lets the role connect, given the errors of all attempts; empty if it is not known.

    Args:
        text: The errors, on one line.
        connection: The last connection, closed; None if there is none.
    """
    options = {} if connection is None else {one.keyword: one.val for one in connection.info}
    if entries := _MISSING_ENTRY.findall(text):
        return _missing_line(entries, is_unencrypted=options.get(b"sslmode") == b"disable")
    if connection is None:
        return ""
    names = {"role": connection.user, "database": connection.db}
    quoted = {key: sql.Identifier(name.decode()).as_string() for key, name in names.items()}
    return next(
        (one.format(**quoted) for sign, one in _REMEDIES.items() if sign.format(**quoted) in text), ""
    )


def _missing_line(entries: list[tuple[str, ...]], *, is_unencrypted: bool) -> str:
    """Return the missing line of pg_hba.conf, which demands TLS if the client has used TLS.

    Args:
        entries: For each attempt: address of the client, role, database, and empty without TLS.
        is_unencrypted: Whether the DSN forbids TLS.
    """
    (host, role, database, _), *_ = entries
    kind, address = "local", ""
    if host != "[local]":
        if is_unencrypted:
            return "use sslmode=verify-full, or another than disable: the server may demand TLS (hostssl)"
        has_tls = any(tls for *_, tls in entries)
        kind, address = "hostssl" if has_tls else "host", f"{host}/{128 if ':' in host else 32} "
    line = f"{kind} {database} {role} {address}scram-sha-256"
    return f"add to pg_hba.conf, then run SELECT pg_reload_conf(): {line}"


def _class_of_refusal(reasons: list[str]) -> type[ReplicationError]:
    """Return the exception class for a refused connection, from the errors of all addresses of a server."""
    if any(map(_PERMANENT.search, reasons)):
        return ReplicationError
    return CredentialsRefused if any(map(_CREDENTIALS.search, reasons)) else ConnectionLost


def error_of(fields: ErrorFields) -> ReplicationError:
    """Return the exception to raise for a failed query, command or stream, given the fields of its error."""
    text = fields.text
    if _DECODING in fields.context:
        text = f"{text} ({one_line(fields.context)})"
    if fields.sqlstate == _INSUFFICIENT_PRIVILEGE and _ALLOWED_PLUGINS in fields.detail + text:
        return ReplicationError(
            f"the server does not allow the output plugin pgoutput: add pgoutput to its setting "
            f"{_ALLOWED_PLUGINS} (ALTER SYSTEM SET {_ALLOWED_PLUGINS} = …), then run SELECT pg_reload_conf()"
        )
    for (sqlstate, part), remedy in _QUERY_REMEDIES.items():
        if fields.sqlstate == sqlstate and part in fields.text:
            text += f"{REMEDY}{remedy}"
    if fields.sqlstate.startswith(_RETRYABLE) or not fields.sqlstate:  # errors of libpq have no SQLSTATE
        return ConnectionLost(text)
    return _CLASSES.get(fields.sqlstate, ReplicationError)(text)
