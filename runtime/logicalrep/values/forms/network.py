"""Network addresses: inet, cidr, macaddr and macaddr8."""

from __future__ import annotations

import re
from functools import partial
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from logicalrep.values.forms.parsing import Form, match_whole

_FAMILIES: Final = {4: 2, 16: 3}
"""Address family (PGSQL_AF_INET, PGSQL_AF_INET6), by size of an address in bytes."""
_ADDRESS_FORM: Final = re.compile(r"([0-9a-f:.]+)(?:/([0-9]{1,3}))?")
_COMPATIBLE: Final = bytes(12)
"""First bytes of an IPv4-compatible IPv6 address, which ends with the IPv4 address."""
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""First bytes of an IPv4-mapped IPv6 address, which ends with the IPv4 address."""


def _format_network(data: bytes, cidr: bool) -> str:
    """Return an address's text, `10.0.0.1` or `10.0.0.0/8` (network_send, network_out).

    Args:
        data: Address family, netmask length in bits, cidr flag, address size, address.
        cidr: Whether the type is cidr: the netmask is always written, and host bits must be zero.
    """
    family, bits, _, size = data[:4]
    address = data[4:]
    if _FAMILIES.get(size) != family or len(address) != size or bits > 8 * size:
        raise ValueError(
            f"invalid address: family {family}, {bits} bits of netmask, size {size}, {len(address)} bytes"
        )
    if cidr and int.from_bytes(address) & (1 << 8 * size - bits) - 1:
        raise ValueError(f"a cidr must have only zero bits to the right of its netmask of {bits} bits")
    text = _format_ipv4(address) if size == 4 else _format_ipv6(address)
    return text if bits == 8 * size and not cidr else f"{text}/{bits}"


def _format_ipv4(address: bytes) -> str:
    return ".".join(map(str, address))


def _format_ipv6(address: bytes) -> str:
    """Return an IPv6 address's text, with an embedded IPv4 address in IPv4 notation (inet_net_ntop_ipv6)."""
    if address.startswith(_MAPPED):
        return f"::ffff:{_format_ipv4(address[12:])}"
    if address.startswith(_COMPATIBLE) and any(address[12:14]):
        return f"::{_format_ipv4(address[12:])}"
    return str(IPv6Address(address))


def _encode_network(text: str, cidr: bool) -> bytes:
    """Return an inet's or cidr's binary form: family, netmask bits, cidr flag, address (network_send)."""
    match = match_whole(_ADDRESS_FORM, text, "192.168.0.0/16 or fe80::1")
    address = ip_address(match[1])
    bits = int(match[2]) if match[2] else address.max_prefixlen
    if bits > address.max_prefixlen:
        raise ValueError(f"a netmask has at most {address.max_prefixlen} bits, not {bits}")
    if cidr:
        ip_network(f"{address}/{bits}")  # raises ValueError if a host bit is set
    data = address.packed
    return bytes((_FAMILIES[len(data)], bits, cidr, len(data))) + data


def _format_mac(data: bytes, size: int) -> str:
    if len(data) != size:
        raise ValueError(f"expected a MAC address of {size} bytes, found {len(data)}")
    return data.hex(":")


def _encode_mac(text: str, size: int) -> bytes:
    form = re.compile("[0-9a-f]{2}(:[0-9a-f]{2})" + f"{{{size - 1}}}")
    return bytes.fromhex(match_whole(form, text, ":".join(["0a"] * size))[0].replace(":", ""))


NETWORK: Final = {
    "inet_send": Form(partial(_format_network, cidr=False), partial(_encode_network, cidr=False)),
    "cidr_send": Form(partial(_format_network, cidr=True), partial(_encode_network, cidr=True)),
    "macaddr_send": Form(partial(_format_mac, size=6), partial(_encode_mac, size=6)),
    "macaddr8_send": Form(partial(_format_mac, size=8), partial(_encode_mac, size=8)),
}
"""Conversions between binary and text form, by name of the type's send function."""
