"""SQL statements that are not SELECT, by a table; and what a connection needs to answer any of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pgoutput.standin.protocol import Field, Refused, parameter_status
from pgoutput.standin.slots import Slot
from pgoutput.standin.sql.catalogs import View
from pgoutput.standin.sql.functions import functions_of
from pgoutput.standin.sql.lookups import Result, select
from pgoutput.standin.sql.rewriting import literals
from pgoutput.standin.sql.settings import Settings
from pgoutput.standin.sql.values import Cell

if TYPE_CHECKING:
    from pgoutput.standin.hub import Hub


class Backend:
    """A connection, as far as SQL is concerned.

    Attributes:
        hub: What all connections share.
        settings: Those of the connection.
        pid: What it is known by.
        database: To which it is.
        user: Who has connected.
        status: Outside a transaction (I), inside one (T), or inside one that has failed (E).
    """

    def __init__(self, hub: Hub, pid: int, database: str, user: str) -> None:
        self.hub = hub
        self.pid = pid
        self.database = database
        self.user = user
        self.settings = Settings(hub.source.server_version, user, hub.sender_timeout, hub.settings)
        self.status = b"I"
        self._notices = b""

    def execute(self, sql: str, given: Sequence[Cell] = ()) -> Result:
        """Run a statement.

        Args:
            sql: The statement.
            given: Its parameters.

        Raises:
            Refused: It cannot be run.
        """
        for pattern, run in _STATEMENTS.items():
            match = re.match(pattern, sql, re.IGNORECASE | re.DOTALL)
            if match is not None:
                self._check_status(pattern)
                return run(self, match, given)
        word = sql.split(None, 1)[0][:30] if sql.strip() else ""
        raise Refused(
            "0A000",
            f"a stand-in answers only SELECT, SHOW, SET and what controls transactions, and not {word}",
            "It serves a stream, and holds no tables.",
        )

    def describe(self, sql: str, count: int) -> Result:
        """What a statement with so many parameters gives, but for its rows. It is not done.

        Raises:
            Refused: It cannot be run.
        """
        if re.match(_SELECT, sql, re.IGNORECASE):
            return self.select(sql, [None] * count, act=False)
        return self.execute(sql) if re.match("SHOW", sql, re.IGNORECASE) else Result("")

    def failed(self) -> None:
        """Take note that a statement has failed."""
        if self.status == b"T":
            self.status = b"E"

    def take_notices(self) -> bytes:
        """What the client is to be told before the end of the command."""
        notices, self._notices = self._notices, b""
        return notices

    def set(self, name: str, value: str) -> None:
        """Change a setting."""
        changed = self.settings.set(name, value)
        if changed is not None:
            self._notices += parameter_status(changed, self.settings[changed])

    def create_slot(
        self, name: str, plugin: str, temporary: bool, two_phase: bool, failover: bool = False
    ) -> Slot:
        """Create a slot.

        Raises:
            Refused: It cannot be.
        """
        if plugin != "pgoutput":
            raise Refused(
                "58P01", f'could not access file "{plugin}": a stand-in has the plugin pgoutput only'
            )
        self.hub.check_plugin(plugin)
        lsn = self.hub.source.start_lsn
        slot = Slot(name, self.database, lsn, temporary, two_phase, failover, self.pid)
        self.hub.slots.create(slot)
        return slot

    def select(self, sql: str, given: Sequence[Cell], *, act: bool) -> Result:
        """Answer a query; where any publication exists, those that it names do.

        Args:
            sql: The query.
            given: Its parameters.
            act: Whether functions that change something do so.

        Raises:
            Refused: It cannot be answered.
        """
        hub = self.hub
        asked = (*literals(sql), *(value for value in given if isinstance(value, str)))
        view = View(
            source=hub.source,
            settings=self.settings,
            slots=tuple(hub.slots),
            publications=hub.publications(asked),
            database=self.database,
            user=self.user,
            senders=tuple(hub.senders.values()),
        )
        return select(sql, given, view, functions_of(self, act=act))

    def _check_status(self, pattern: str) -> None:
        if self.status == b"E" and pattern not in (_END, _ROLLBACK):
            raise Refused(
                "25P02", "current transaction is aborted, commands ignored until end of transaction block"
            )


Run = Callable[[Backend, "re.Match[str]", Sequence[Cell]], Result]


def _select(backend: Backend, match: re.Match[str], given: Sequence[Cell]) -> Result:
    return backend.select(match.string, given, act=True)


def _begin(backend: Backend, match: re.Match[str], _: Sequence[Cell]) -> Result:
    backend.status = b"T"
    return Result("BEGIN" if match[1].upper() == "BEGIN" else "START TRANSACTION")


def _end(backend: Backend, match: re.Match[str], _: Sequence[Cell]) -> Result:
    failed, backend.status = backend.status == b"E", b"I"
    return Result("ROLLBACK" if failed else "COMMIT")


def _rollback(backend: Backend, match: re.Match[str], _: Sequence[Cell]) -> Result:
    backend.status = b"T" if match[1] else b"I"
    return Result("ROLLBACK")


def _show(backend: Backend, match: re.Match[str], _: Sequence[Cell]) -> Result:
    name = match[1].strip('"')
    value = backend.settings[name]
    if name.lower() == "wal_sender_timeout" and value.endswith("000ms"):
        value = value.removesuffix("000ms") + "s"
    return Result("SHOW", [Field(name)], [[value]])


def _set(backend: Backend, match: re.Match[str], _: Sequence[Cell]) -> Result:
    value = match[2].strip()
    if value[:1] == "'":
        value = value[1:-1].replace("''", "'")
    name = match[1].strip('"')
    backend.set("TimeZone" if name.lower() == "time" else name, value)
    return Result("SET")


def _no_snapshot(backend: Backend, match: re.Match[str], _: Sequence[Cell]) -> Result:
    raise Refused(
        "0A000",
        "a stand-in has no tables, and so no snapshots of them",
        "Begin with the stream: create the slot without a snapshot.",
    )


def _create_publication(backend: Backend, match: re.Match[str], _: Sequence[Cell]) -> Result:
    backend.hub.create_publication(_identifier(match[1]))
    return Result("CREATE PUBLICATION")


def _tag(tag: str) -> Run:
    return lambda backend, match, given: Result(tag)


def _identifier(text: str) -> str:
    return text[1:-1].replace('""', '"') if text[0] == '"' else text.lower()


_SELECT: Final = r"(?:SELECT|WITH|VALUES)\b"
_NAME: Final = r'("(?:[^"]|"")+"|\w+)'
_SETTING: Final = r'("?[\w.]+"?)'
_END: Final = r"(?:COMMIT|END)\b(?!\s+PREPARED)"
_ROLLBACK: Final = r"(?:ROLLBACK|ABORT)\b(?!\s+PREPARED)(?:\s+(?:WORK|TRANSACTION))?(\s+TO\b.*)?"

_STATEMENTS: Final[Mapping[str, Run]] = {
    _SELECT: _select,
    rf"SHOW\s+{_SETTING}\s*$": _show,
    r"SET\s+(?:TRANSACTION\s+SNAPSHOT)\b": _no_snapshot,
    r"SET\s+(?:SESSION\s+CHARACTERISTICS|(?:LOCAL\s+)?TRANSACTION)\b": _tag("SET"),
    rf"SET\s+(?:SESSION\s+|LOCAL\s+)?{_SETTING}\s*(?:=|\bTO\b)\s*(.*)$": _set,
    r"SET\s+(?:SESSION\s+|LOCAL\s+)?(TIME)\s+ZONE\s+(.*)$": _set,
    r"RESET\s": _tag("RESET"),
    r"DISCARD\s": _tag("DISCARD ALL"),
    r"DEALLOCATE\s": _tag("DEALLOCATE"),
    r"(?:UNLISTEN)\s": _tag("UNLISTEN"),
    r"(BEGIN|START\s+TRANSACTION)\b": _begin,
    _END: _end,
    _ROLLBACK: _rollback,
    r"SAVEPOINT\s": _tag("SAVEPOINT"),
    r"RELEASE\s": _tag("RELEASE"),
    rf"CREATE\s+PUBLICATION\s+{_NAME}": _create_publication,
}
"""What begins as one of these patterns is run so."""
