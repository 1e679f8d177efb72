"""Errors of servers and of connection attempts: which of them are retryable."""

from __future__ import annotations

import re
from typing import Final

import psycopg
from psycopg import pq

from pgoutput.errors import ConnectionLost, ReplicationError

_TRANSIENT: Final = (
    "08",  # connection failures
    "40001",  # a conflict with recovery, on a standby
    *("53000", "53100", "53200", "53300"),  # a lack of resources, but not 53400, a limit by configuration
    *("57P01", "57P02", "57P03"),  # a server that shuts down or starts up
    "55006",  # a slot that is in use
)
"""SQLSTATEs of retryable errors, or how they begin."""

_INSUFFICIENT_PRIVILEGE: Final = "42501"

_ALLOWED_PLUGINS: Final = "output_plugin_libraries"
"""Setting of minor releases since August 2026: libraries that may be used as output plugins. Its name is in
the detail and in the hint of the error that refuses others, in every language."""

_CREDENTIALS: Final = re.compile(
    "authentication failed for user|no password supplied|channel binding|certificate|private key"
)
_PERMANENT: Final = re.compile(
    'role ".*" (does not exist|is not permitted to log in)|database ".*" does not exist'
    "|no pg_hba.conf entry|pg_hba.conf rejects|permission denied|must be superuser or replication role"
    "|server does not support SSL|invalid .*value|invalid connection option"
    "|definition of service|service file"
)
"""Texts of errors of connection attempts. libpq keeps no SQLSTATE of these, so servers whose messages are not
in English are retried."""

_SEVERAL: Final = "\nMultiple connection attempts failed. All failures were:\n- host: "
"""Precedes the errors of all attempts, where there are several servers, or several addresses of one."""


class UndefinedObject(ReplicationError):
    """The server does not know an object by the given name."""


class LockNotAvailable(ReplicationError):
    """Another transaction holds a lock for longer than lock_timeout."""


class CredentialsRefused(ReplicationError):
    """The password or a certificate was refused or is missing; retryable while they are being replaced."""


def error_of_attempt(error: psycopg.OperationalError) -> ReplicationError:
    """Return the error of a failed connection attempt.

    Args:
        error: As psycopg raises it, with the errors of all attempts.

    Returns:
        ConnectionLost if one of the servers may accept a later attempt, CredentialsRefused if all refuse, one
        because of a password or certificate, else ReplicationError.
    """
    text = f"no connection: {one_line(str(error))}"
    last, _, several = str(error).partition(_SEVERAL)
    servers: dict[str, list[str]] = {}
    for attempt in several.split("\n- host: ") if several else [last]:
        server, found, reason = attempt.partition(", hostaddr: ")
        servers.setdefault(server if found else "", []).append(reason if found else attempt)
    kinds = {_kind(reasons) for reasons in servers.values()}
    return max(kinds, key=(ReplicationError, CredentialsRefused, ConnectionLost).index)(text)


def _kind(reasons: list[str]) -> type[ReplicationError]:
    """Return the class of the error of one server. It is refused if one of its addresses answers so."""
    if any(map(_PERMANENT.search, reasons)):
        return ReplicationError
    return CredentialsRefused if any(map(_CREDENTIALS.search, reasons)) else ConnectionLost


def error_of_result(result: pq.abc.PGresult) -> ReplicationError:
    """Return the error of a failed query, command or stream."""
    state, text = field(result, pq.DiagnosticField.SQLSTATE), text_of(result)
    detail = field(result, pq.DiagnosticField.MESSAGE_DETAIL)
    if state == _INSUFFICIENT_PRIVILEGE and _ALLOWED_PLUGINS in detail + text:
        return ReplicationError(
            f"the server does not allow the output plugin pgoutput: add pgoutput to its setting "
            f"{_ALLOWED_PLUGINS} (ALTER SYSTEM SET {_ALLOWED_PLUGINS} = …), then run SELECT pg_reload_conf()"
        )
    if state.startswith(_TRANSIENT) or not state:  # libpq's own errors have none
        return ConnectionLost(text)
    return _KINDS.get(state, ReplicationError)(text)


_KINDS: Final = {"42704": UndefinedObject, "55P03": LockNotAvailable}
"""Classes of errors by SQLSTATE."""


def field(result: pq.abc.PGresult, name: pq.DiagnosticField) -> str:
    """Return a field of an error or notice; the empty text if it is absent."""
    return (result.error_field(name) or b"").decode(errors="backslashreplace")


def text_of(result: pq.abc.PGresult) -> str:
    """Return the primary message and the hint of an error or notice, on one line."""
    text = field(result, pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message.decode(
        errors="backslashreplace"
    )
    hint = field(result, pq.DiagnosticField.MESSAGE_HINT)
    return one_line(f"{text} ({hint})" if hint else text)


def one_line(text: str) -> str:
    """Return a text with all white space as single spaces."""
    return " ".join(text.split())
