"""Network addresses: inet, cidr, macaddr and macaddr8."""

from __future__ import annotations

import re
import struct
from functools import partial
from typing import Final

from pgoutput.values.reader import Output

_FAMILIES: Final = {2: 4, 3: 16}
"""Bytes of an address, by PGSQL_AF_INET and PGSQL_AF_INET6."""


def _network(data: bytes, cidr: bool) -> str:
    """From family, bits of the netmask, a flag and the address (network_send, network_out)."""
    family, bits, _, size = data[:4]
    address = data[4:]
    if _FAMILIES.get(family) != size or len(address) != size or bits > 8 * size:
        raise ValueError("not an address")
    if cidr and int.from_bytes(address) & (1 << 8 * size - bits) - 1:
        raise ValueError("bits to the right of the mask")
    text = _ipv4(address) if size == 4 else _ipv6(address)
    return text if bits == 8 * size and not cidr else f"{text}/{bits}"


def _ipv4(address: bytes) -> str:
    return ".".join(map(str, address))


def _ipv6(address: bytes) -> str:
    """The first longest run of two or more zeros as `::` (inet_net_ntop_ipv6)."""
    words = [f"{word:x}" for word in struct.unpack(">8H", address)]
    zeros = "".join("0" if word == "0" else "x" for word in words)
    run = max(re.finditer("0{2,}", zeros), key=lambda run: run.end() - run.start(), default=None)
    if run is None:
        return ":".join(words)
    if run.start() == 0 and (run.end() == 6 or (run.end() == 5 and words[5] == "ffff")):  # holds an IPv4
        words[6:] = [_ipv4(address[12:])]
    return ":".join(words[: run.start()]) + "::" + ":".join(words[run.end() :])


def _mac(data: bytes, size: int) -> str:
    if len(data) != size:
        raise ValueError("not a MAC address")
    return data.hex(":")


NETWORK: Final[dict[str, Output]] = {
    "inet_send": partial(_network, cidr=False),
    "cidr_send": partial(_network, cidr=True),
    "macaddr_send": partial(_mac, size=6),
    "macaddr8_send": partial(_mac, size=8),
}
"""By send function."""
