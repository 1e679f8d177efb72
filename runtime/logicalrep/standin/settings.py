"""Settings (GUC parameters) of a connection, as SHOW, SET and pg_settings use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from logicalrep.standin.protocol import ServerError
from logicalrep.standin.slots import MAX_SLOTS

REPORTED: Final = (
    "server_version",
    "server_encoding",
    "client_encoding",
    "application_name",
    "is_superuser",
    "session_authorization",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
    "default_transaction_read_only",
    "in_hot_standby",
)
"""Settings that the server reports in ParameterStatus, after connecting and on change (GUC_REPORT)."""

_DEFAULTS: Final = {
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "application_name": "",
    "is_superuser": "on",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "off",
    "in_hot_standby": "off",
    "bytea_output": "hex",
    "data_directory_mode": "0700",
    "default_table_access_method": "heap",
    "extra_float_digits": "1",
    "jit": "on",
    "lc_messages": "C",
    "max_identifier_length": "63",
    "max_replication_slots": str(MAX_SLOTS),
    "max_wal_senders": "1000",
    "search_path": '"$user", public',
    "statement_timeout": "0",
    "transaction_isolation": "read committed",
    "wal_level": "logical",
    "wal_segment_size": "16MB",
}


class Settings:
    """Settings (GUC parameters) of one connection.

    Args:
        server_version: Reported version, such as 18.4.
        user: Name of the connected user.
        wal_sender_timeout: wal_sender_timeout, in seconds; 0 disables the timeout.
        overrides: Values by setting name. They replace the default values, or add settings.
    """

    def __init__(
        self, server_version: str, user: str, wal_sender_timeout: float, overrides: Mapping[str, str]
    ) -> None:
        self._values = _DEFAULTS | {
            "server_version": server_version,
            "server_version_num": str(version_number(server_version)),
            "session_authorization": user,
            "wal_sender_timeout": f"{wal_sender_timeout * 1000:.0f}ms" if wal_sender_timeout else "0",
        }
        self._values |= overrides
        self._names = {name.lower(): name for name in self._values}

    def __getitem__(self, name: str) -> str:
        """Return the value of a setting. Names of settings are not case-sensitive.

        Raises:
            ServerError: There is no setting of this name.
        """
        try:
            return self._values[self._names[name.lower()]]
        except KeyError:
            raise ServerError("42704", f'unrecognized configuration parameter "{name}"') from None

    def set(self, name: str, value: str) -> str | None:
        """Change or add a setting. Return its name if ParameterStatus must report the change, else None.

        Values are stored without validation, because no setting changes the server's behavior. The only
        accepted client encoding is UTF8.

        Raises:
            ServerError: The setting is read-only, or the client encoding is not UTF8.
        """
        name = self._names.setdefault(name.lower(), name)
        if name in _READ_ONLY:
            raise ServerError("55P02", f'parameter "{name}" cannot be changed')
        if name == "client_encoding" and _clean(value) not in _UTF8_NAMES:
            raise ServerError("22023", f"client_encoding {value}: the stand-in server supports only UTF8")
        if name == "client_encoding":
            value = "UTF8"
        changed = self._values.get(name) != value
        self._values[name] = value
        return name if changed and name in REPORTED else None

    def catalog_rows(self) -> Mapping[str, str]:
        """Return the values that pg_settings shows, by setting name. Times are in ms, without the unit."""
        return self._values | {"wal_sender_timeout": self._values["wal_sender_timeout"].removesuffix("ms")}


_READ_ONLY: Final = ("server_version", "server_version_num", "server_encoding", "wal_level", "is_superuser")
_UTF8_NAMES: Final = ("utf8", "unicode", "sqlascii", "default")


def _clean(encoding: str) -> str:
    """Return the name of an encoding in lower case and without punctuation (clean_encoding_name)."""
    return "".join(filter(str.isalnum, encoding)).lower()


def version_number(server_version: str) -> int:
    """Return the value of server_version_num for a server_version: 180004 for 18.4, 190000 for 19rc1."""
    match = re.match(r"(\d+)(?:\.(\d+))?", server_version)
    assert match is not None, server_version
    major, minor = match.groups(default="0")
    return int(major) * 10_000 + int(minor)
