"""Network addresses: inet, cidr, macaddr and macaddr8."""

from __future__ import annotations

import re
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Final

from pgoutput.values.binary.reading import Input, matched

_FAMILIES: Final = {4: 2, 6: 3}
"""PGSQL_AF_INET and PGSQL_AF_INET6, by version of the protocol."""
_ADDRESS: Final = re.compile(r"([0-9a-f:.]+)(?:/([0-9]{1,3}))?")


def _network(text: str, cidr: bool) -> bytes:
    """Family, bits of the netmask, whether it is a cidr, and the address (network_in, network_send)."""
    match = matched(_ADDRESS, text, "192.168.0.0/16 or fe80::1")
    address = ip_address(match[1])
    bits = int(match[2]) if match[2] else address.max_prefixlen
    if bits > address.max_prefixlen:
        raise ValueError(f"a netmask has at most {address.max_prefixlen} bits")
    if cidr:
        ip_network(f"{address}/{bits}")  # no bits to the right of the mask
    data = address.packed
    return bytes((_FAMILIES[address.version], bits, cidr, len(data))) + data


def _mac(text: str, size: int) -> bytes:
    form = re.compile("[0-9a-f]{2}(:[0-9a-f]{2})" + f"{{{size - 1}}}")
    return bytes.fromhex(matched(form, text, ":".join(["0a"] * size))[0].replace(":", ""))


NETWORK: Final[dict[str, Input]] = {
    "inet_send": partial(_network, cidr=False),
    "cidr_send": partial(_network, cidr=True),
    "macaddr_send": partial(_mac, size=6),
    "macaddr8_send": partial(_mac, size=8),
}
"""By send function."""
