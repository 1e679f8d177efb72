"""Binary form of network addresses: inet, cidr, macaddr and macaddr8."""

from __future__ import annotations

import re
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Final

from pgoutput.values.binary_from_text.parsing import InputFunction, match_whole

_FAMILIES: Final = {4: 2, 6: 3}
"""Address family (PGSQL_AF_INET, PGSQL_AF_INET6), by IP version."""
_ADDRESS: Final = re.compile(r"([0-9a-f:.]+)(?:/([0-9]{1,3}))?")


def _encode_network(text: str, cidr: bool) -> bytes:
    """Return an inet's or cidr's binary form: family, netmask bits, cidr flag, address (network_send)."""
    match = match_whole(_ADDRESS, text, "192.168.0.0/16 or fe80::1")
    address = ip_address(match[1])
    bits = int(match[2]) if match[2] else address.max_prefixlen
    if bits > address.max_prefixlen:
        raise ValueError(f"a netmask has at most {address.max_prefixlen} bits")
    if cidr:
        ip_network(f"{address}/{bits}")  # raises ValueError if a host bit is set
    data = address.packed
    return bytes((_FAMILIES[address.version], bits, cidr, len(data))) + data


def _encode_mac(text: str, size: int) -> bytes:
    form = re.compile("[0-9a-f]{2}(:[0-9a-f]{2})" + f"{{{size - 1}}}")
    return bytes.fromhex(match_whole(form, text, ":".join(["0a"] * size))[0].replace(":", ""))


NETWORK: Final[dict[str, InputFunction]] = {
    "inet_send": partial(_encode_network, cidr=False),
    "cidr_send": partial(_encode_network, cidr=True),
    "macaddr_send": partial(_encode_mac, size=6),
    "macaddr8_send": partial(_encode_mac, size=8),
}
"""Input functions of network types, by name of the send function."""
