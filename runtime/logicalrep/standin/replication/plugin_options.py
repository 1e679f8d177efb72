"""Parse the options of START_REPLICATION and check them as the plugin pgoutput does.

Error messages follow parse_output_parameters and pgoutput_startup in PostgreSQL's pgoutput.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from logicalrep.standin.protocol import ServerError
from logicalrep.standin.replication.scanner import OptionList
from logicalrep.standin.source import PluginOptions
from logicalrep.versions import OPTIONS, SERVERS

_UINT32_MAX: Final = 0xFFFFFFFF
_IDENTIFIER: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^\s",][^\s",]*))\s*')


def parse_plugin_options(options: OptionList, server_version: int, two_phase: bool) -> PluginOptions:
    """Parse and check the options of a START_REPLICATION command.

    Args:
        options: Names and values as written in the command.
        server_version: Major version of PostgreSQL that the stand-in server reports.
        two_phase: Whether two_phase was enabled for the slot.

    Raises:
        ServerError: A server of this version does not accept the options.
    """
    parsed: dict[str, Any] = {}
    for name, value in options:
        parser = _PARSERS.get(name)
        if parser is None or server_version < _first_server_version(name):
            raise ServerError("XX000", f"unrecognized pgoutput option: {name}")
        if name in parsed:
            raise ServerError("42601", "conflicting or redundant options")
        if name == "streaming" and server_version < OPTIONS[name]["parallel"].server:
            parse_boolean(name, value)
        parsed[name] = parser(value)
    if server_version >= 17:
        for name in ("proto_version", "publication_names"):
            if name not in parsed:
                raise ServerError("22023", f'option "{name}" missing')
    _check_proto_version(parsed.get("proto_version", 0), server_version)
    if server_version < 17 and not parsed.get("publication_names"):
        raise ServerError("22023", "publication_names parameter missing")
    for name, descriptions in _VERSIONED_OPTIONS.items():
        value = {True: "on", False: "off"}.get(parsed.get(name, False), parsed.get(name))
        required, _ = OPTIONS[name][str(value)]
        if parsed["proto_version"] < required:
            description = descriptions.get(str(value), descriptions["on"])
            raise ServerError(
                "22023",
                f"requested proto_version={parsed['proto_version']} does not support {description}, "
                f"need {required} or higher",
            )
    return PluginOptions(**parsed | {"two_phase": two_phase or parsed.get("two_phase", False)})


_VERSIONED_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "streaming": {"on": "streaming", "parallel": "parallel streaming"},
    "two_phase": {"on": "two-phase commit"},
}
"""Names in error messages of option values that need a minimum protocol version, by option and value."""


def parse_boolean(name: str, value: str | None) -> bool:
    """Parse the value of a Boolean option; an option without a value is true (defGetBoolean).

    Raises:
        ServerError: The value is not Boolean.
    """
    try:
        return _BOOLEANS["true" if value is None else value.lower()]
    except KeyError:
        raise ServerError("42601", f"{name} requires a Boolean value") from None


_BOOLEANS: Final = {"true": True, "on": True, "false": False, "off": False}
"""Values of a Boolean option. 0 and 1 are not valid, because the values of plugin options are strings."""


def _first_server_version(name: str) -> int:
    """Return the first major version of PostgreSQL that accepts an option, or 0 if all versions do."""
    values = OPTIONS.get(name)
    return 0 if values is None else list(values.values())[1].server


def _check_proto_version(version: int, server_version: int) -> None:
    oldest, newest = min(SERVERS), max(one for one, server in SERVERS.items() if server <= server_version)
    for is_wrong, limit, direction in (
        (version > newest, newest, "lower"),
        (version < oldest, oldest, "higher"),
    ):
        if is_wrong:
            subject = "server only supports" if server_version >= 16 else "we only support"
            supported = f"{subject} protocol {limit} or {direction}"
            raise ServerError("0A000", f"client sent proto_version={version} but {supported}")


def _parse_proto_version(value: str | None) -> int:
    if value == "":  # strtoul returns 0 for an empty string
        return 0
    if value is None or not re.fullmatch(r"\s*[+-]?[0-9]{1,19}", value):
        raise ServerError("22023", "invalid proto_version")
    if not 0 <= int(value) <= _UINT32_MAX:
        raise ServerError("22023", f'proto_version "{value}" out of range')
    return int(value)


def parse_identifier_list(value: str | None) -> tuple[str, ...]:
    """Parse identifiers separated by commas (SplitIdentifierString).

    Raises:
        ServerError: The list is not well-formed.
    """
    names: list[str] = []
    position, text = 0, value or ""
    if not text.strip():
        return ()
    while True:
        match = _IDENTIFIER.match(text, position)
        if match is None:
            raise ServerError("42602", "invalid publication_names syntax")
        names.append(match[2].lower() if match[1] is None else match[1].replace('""', '"'))
        position = match.end()
        if position == len(text):
            return tuple(names)
        if text[position] != ",":
            raise ServerError("42602", "invalid publication_names syntax")
        position += 1


def _parse_streaming(value: str | None) -> str:
    if value is not None and value.lower() == "parallel":
        return "parallel"
    try:
        return "on" if parse_boolean("streaming", value) else "off"
    except ServerError:
        raise ServerError("42601", 'streaming requires a Boolean value or "parallel"') from None


def _parse_origin(value: str | None) -> str:
    if value is None or value.lower() not in ("any", "none"):
        raise ServerError("22023", f'unrecognized origin value: "{value or ""}"')
    return value.lower()


_PARSERS: Final[Mapping[str, Callable[[str | None], Any]]] = {
    "proto_version": _parse_proto_version,
    "publication_names": parse_identifier_list,
    "streaming": _parse_streaming,
    "two_phase": lambda value: parse_boolean("two_phase", value),
    "binary": lambda value: parse_boolean("binary", value),
    "messages": lambda value: parse_boolean("messages", value),
    "origin": _parse_origin,
}
