"""Text of network addresses: inet, cidr, macaddr and macaddr8."""

from __future__ import annotations

import re
import struct
from functools import partial
from typing import Final

from pgoutput.values.text_from_binary.reader import OutputFunction

_FAMILIES: Final = {2: 4, 3: 16}
"""Size of an address in bytes, by address family (PGSQL_AF_INET, PGSQL_AF_INET6)."""


def _format_network(data: bytes, cidr: bool) -> str:
    """Return an address's text, `10.0.0.1` or `10.0.0.0/8` (network_send, network_out).

    Args:
        data: Address family, netmask length in bits, cidr flag, address size, address.
        cidr: Whether the type is cidr: the netmask is always written, and host bits must be zero.
    """
    family, bits, _, size = data[:4]
    address = data[4:]
    if _FAMILIES.get(family) != size or len(address) != size or bits > 8 * size:
        raise ValueError("not an address")
    if cidr and int.from_bytes(address) & (1 << 8 * size - bits) - 1:
        raise ValueError("bits to the right of the mask")
    text = _format_ipv4(address) if size == 4 else _format_ipv6(address)
    return text if bits == 8 * size and not cidr else f"{text}/{bits}"


def _format_ipv4(address: bytes) -> str:
    return ".".join(map(str, address))


def _format_ipv6(address: bytes) -> str:
    """Return an IPv6 address with its first longest run of zero words as `::` (inet_net_ntop_ipv6)."""
    words = [f"{word:x}" for word in struct.unpack(">8H", address)]
    zeros = "".join("0" if word == "0" else "x" for word in words)
    run = max(re.finditer("0{2,}", zeros), key=lambda run: run.end() - run.start(), default=None)
    if run is None:
        return ":".join(words)
    if run.start() == 0 and (
        run.end() == 6 or (run.end() == 5 and words[5] == "ffff")
    ):  # an embedded IPv4 address
        words[6:] = [_format_ipv4(address[12:])]
    return ":".join(words[: run.start()]) + "::" + ":".join(words[run.end() :])


def _format_mac(data: bytes, size: int) -> str:
    if len(data) != size:
        raise ValueError("not a MAC address")
    return data.hex(":")


NETWORK: Final[dict[str, OutputFunction]] = {
    "inet_send": partial(_format_network, cidr=False),
    "cidr_send": partial(_format_network, cidr=True),
    "macaddr_send": partial(_format_mac, size=6),
    "macaddr8_send": partial(_format_mac, size=8),
}
"""Output functions of network types, by name of the send function."""
