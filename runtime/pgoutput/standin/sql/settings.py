"""The settings of a connection, as SHOW, SET and pg_settings have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pgoutput.standin.protocol import Refused
from pgoutput.standin.slots import MAX_SLOTS

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
"""What a server reports by itself, at the start and when it changes."""

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
    "extra_float_digits": "1",
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
    """The settings of one connection.

    Args:
        server_version: As 18.4.
        user: Who is connected.
        sender_timeout: wal_sender_timeout in seconds; 0 for none.
        others: Values that differ from the usual ones, or of settings that are not there otherwise.
    """

    def __init__(
        self, server_version: str, user: str, sender_timeout: float, others: Mapping[str, str]
    ) -> None:
        self._values = _DEFAULTS | {
            "server_version": server_version,
            "server_version_num": str(version_number(server_version)),
            "session_authorization": user,
            "wal_sender_timeout": f"{sender_timeout * 1000:.0f}ms" if sender_timeout else "0",
        }
        self._values |= others
        self._names = {name.lower(): name for name in self._values}

    def __getitem__(self, name: str) -> str:
        """The value of a setting, as SHOW gives it.

        Raises:
            Refused: There is none of this name.
        """
        try:
            return self._values[self._names[name.lower()]]
        except KeyError:
            raise Refused("42704", f'unrecognized configuration parameter "{name}"') from None

    def set(self, name: str, value: str) -> str | None:
        """Set one, known or not; give its name if the client has to be told of the change.

        Values are taken as they are: nothing here depends on them. Other encodings than UTF8 are refused.

        Raises:
            Refused: It cannot be changed to that.
        """
        name = self._names.setdefault(name.lower(), name)
        if name in _FIXED:
            raise Refused("55P02", f'parameter "{name}" cannot be changed')
        if name == "client_encoding" and value.upper().replace("-", "") not in _ENCODINGS:
            raise Refused("22023", f"the stand-in speaks UTF8 only, not {value}")
        if name == "client_encoding":
            value = "UTF8"
        changed = self._values.get(name) != value
        self._values[name] = value
        return name if changed and name in REPORTED else None

    def rows(self) -> Mapping[str, str]:
        """Names and values as pg_settings has them: times in milliseconds, without a unit."""
        return self._values | {"wal_sender_timeout": self._values["wal_sender_timeout"].removesuffix("ms")}


_FIXED: Final = ("server_version", "server_version_num", "server_encoding", "wal_level", "is_superuser")
_ENCODINGS: Final = ("UTF8", "UNICODE", "SQL_ASCII", "DEFAULT")


def version_number(server_version: str) -> int:
    """As server_version_num: 180004 is 18.4."""
    major, _, minor = server_version.partition(".")
    return int(major) * 10_000 + (int(minor) if minor.isdigit() else 0)
