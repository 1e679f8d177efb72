"""The options of START_REPLICATION, and what the plugin says to those that it does not take.

The errors are those of pgoutput.c, parse_output_parameters and pgoutput_startup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pgoutput.standin.commands import boolean
from pgoutput.standin.protocol import Refused
from pgoutput.standin.source import Wanted
from pgoutput.standin.tokens import OptionList
from pgoutput.versions import LATEST_RELEASED, OPTIONS, SERVERS

_UINT32_MAX: Final = 0xFFFFFFFF
_IDENTIFIER: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^\s",][^\s",]*))\s*')


def read_options(options: OptionList, server_version: int, two_phase: bool) -> Wanted:
    """What a client asks for.

    Args:
        options: As it has written them.
        server_version: Major version of the server that the stand-in is taken for.
        two_phase: Whether the slot has its flag two_phase set.

    Raises:
        Refused: A server of this version would refuse them.
    """
    given: dict[str, Any] = {}
    for name, value in options:
        read = _READ.get(name)
        if read is None or server_version < _since(name):
            raise Refused("XX000", f"unrecognized pgoutput option: {name}")
        if name in given:
            raise Refused("42601", "conflicting or redundant options")
        given[name] = read(value)
    for name in ("proto_version", "publication_names"):
        if name not in given:
            raise Refused("22023", f'option "{name}" missing')
    _check_version(given["proto_version"], server_version)
    for name, needs in _NEEDS.items():
        value = {True: "on", False: "off"}.get(given.get(name, False), given.get(name))
        needed, since = OPTIONS[name][str(value)]
        if since > server_version:  # the one value that came later than its option
            raise Refused("42601", f"{name} requires a Boolean value")
        if given["proto_version"] < needed:
            what = needs.get(str(value), needs["on"])
            raise Refused(
                "22023",
                f"requested proto_version={given['proto_version']} does not support {what}, "
                f"need {needed} or higher",
            )
    return Wanted(**given | {"two_phase": two_phase or given.get("two_phase", False)})


_NEEDS: Final[Mapping[str, Mapping[str, str]]] = {
    "streaming": {"on": "streaming", "parallel": "parallel streaming"},
    "two_phase": {"on": "two-phase commit"},
}
"""What the server calls the values that need a protocol version."""


def _since(name: str) -> int:
    """The first server that knows an option."""
    needs = OPTIONS.get(name)
    return 0 if needs is None else list(needs.values())[1].server


def _check_version(version: int, server_version: int) -> None:
    newest = min(max(v for v, server in SERVERS.items() if server <= server_version), LATEST_RELEASED)
    for wrong, limit, word in ((version > newest, newest, "lower"), (version < 1, 1, "higher")):
        if wrong:
            raise Refused(
                "0A000",
                f"client sent proto_version={version} but server only supports protocol {limit} or {word}",
            )


def _proto_version(value: str | None) -> int:
    if value is None or not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", value):
        raise Refused("22023", "invalid proto_version")
    if not 0 <= int(value) <= _UINT32_MAX:
        raise Refused("22023", f'proto_version "{value}" out of range')
    return int(value)


def read_names(value: str | None) -> tuple[str, ...]:
    """Names with commas between (SplitIdentifierString).

    Raises:
        Refused: They are not.
    """
    names: list[str] = []
    position, text = 0, value or ""
    if not text.strip():
        return ()
    while True:
        match = _IDENTIFIER.match(text, position)
        if match is None:
            raise Refused("42602", "invalid publication_names syntax")
        names.append(match[2].lower() if match[1] is None else match[1].replace('""', '"'))
        position = match.end()
        if position == len(text):
            return tuple(names)
        if text[position] != ",":
            raise Refused("42602", "invalid publication_names syntax")
        position += 1


def _streaming(value: str | None) -> str:
    if value is not None and value.lower() == "parallel":
        return "parallel"
    try:
        return "on" if boolean("streaming", value) else "off"
    except Refused:
        raise Refused("42601", 'streaming requires a Boolean value or "parallel"') from None


def _origin(value: str | None) -> str:
    if value is None or value.lower() not in ("any", "none"):
        raise Refused("22023", f'unrecognized origin value: "{value or ""}"')
    return value.lower()


_READ: Final[Mapping[str, Callable[[str | None], Any]]] = {
    "proto_version": _proto_version,
    "publication_names": read_names,
    "streaming": _streaming,
    "two_phase": lambda value: boolean("two_phase", value),
    "binary": lambda value: boolean("binary", value),
    "messages": lambda value: boolean("messages", value),
    "origin": _origin,
}
