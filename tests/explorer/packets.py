"""Write a replication session as a pcap or pcapng file, as tcpdump and Wireshark do."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from logicalrep._stored_stream import Channel

Link = Literal["ethernet", "vlan", "cooked", "raw", "loopback"]
_LINKS: Final[dict[Link, tuple[int, bytes]]] = {
    "ethernet": (1, bytes(12) + b"\x08\0"),
    "vlan": (1, bytes(12) + b"\x81\0\0\x07\x08\0"),
    "cooked": (113, bytes(14) + b"\x08\0"),
    "raw": (101, b""),
    "loopback": (0, b"\x02\0\0\0"),
}
"""By kind of link layer, its number in capture files, and the header before each IP packet."""

_SERVER_PORT: Final = 5432
_FIRST: Final = 0xFFFF_FF00
"""First TCP sequence number, chosen so that sequence numbers soon exceed 32 bits and wrap."""

Packet = tuple[bool, int, bytes]
"""Whether the client sends the packet, the offset of its data in the sender's bytes, and its data."""


class Network(NamedTuple):
    """The link layer, the IP version, and the file format with which packets are written."""

    link: Link = "ethernet"
    six: bool = False
    """Whether the packets are IPv6 packets."""
    order: Literal["<", ">"] = "<"
    """Byte order of the file."""
    blocks: bool = False
    """Whether the file is a pcapng file, instead of a pcap file."""


def session(
    records: Iterable[tuple[Channel, bytes]], options: str, size: int = 400, *, started: bool = True
) -> list[Packet]:
    """Return the packets of a session, none with more than `size` bytes of data.

    Args:
        records: The messages of server and client, each in the channel `copydata` or `sent`.
        options: Options of START_REPLICATION.
        size: Largest number of bytes in a packet.
        started: Whether the packets include the start of the connection, up to START_REPLICATION.
    """
    opening: list[tuple[bool, bytes]] = [
        (True, struct.pack(">ii", 8, 80877103)),
        (False, b"N"),
        (True, struct.pack(">ii", 23, 0x30000) + b"user\0postgres\0\0"),
        (False, frame("R", bytes(4)) + frame("Z", b"I")),
        (True, frame("Q", b"COPY t TO STDOUT\0")),
        (False, frame("H", bytes(3)) + frame("d", b"walrus and other rows of a table\n") + frame("c", b"")),
        (True, frame("Q", f'START_REPLICATION SLOT "s" LOGICAL 0/0 ({options})\0'.encode())),
        (False, frame("W", bytes(3))),
    ]
    sent = opening if started else []
    sent += [(channel == "sent", frame("d", data)) for channel, data in records]
    positions = {True: 0, False: 0}
    packets = []
    for from_client, data in sent:
        for start in range(0, len(data), size):
            part = data[start : start + size]
            packets.append((from_client, positions[from_client], part))
            positions[from_client] += len(part)
    return packets


def frame(tag: str, body: bytes) -> bytes:
    """Return a message of the frontend/backend protocol: tag, length and body."""
    return tag.encode() + struct.pack(">i", len(body) + 4) + body


def disorder(packets: list[Packet]) -> list[Packet]:
    """Return packets, some in another order, and the first half of every fifth sent a second time."""
    result = list(packets)
    for i, (one, other) in enumerate(pairwise(packets)):
        if i % 3 == 0 and one[0] == other[0]:
            result[i : i + 2] = [other, one]
    halves = [(side, position, data[: len(data) // 2]) for side, position, data in result]
    return [packet for i, one in enumerate(result) for packet in ([one, halves[i]] if i % 5 == 0 else [one])]


def write(packets: Iterable[Packet], network: Network, *, handshake: bool = True) -> bytes:
    """Return the content of a pcap or pcapng file with packets.

    Args:
        packets: The packets, in the order in which they arrived.
        network: The link layer, the IP version, and the format of the file.
        handshake: Whether the file begins with the TCP handshake.
    """
    link, _ = _LINKS[network.link]
    frames = [_ip(packet, network) for packet in packets]
    if handshake:
        frames[:0] = [_ip((side, -1, b""), network, flags=2) for side in (True, False)]
    if network.blocks:
        return b"".join(_blocks(frames, link, network.order))
    head = struct.pack(network.order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)
    each = (struct.pack(network.order + "IIII", 0, 0, len(one), len(one)) + one for one in frames)
    return head + b"".join(each)


def _blocks(frames: Iterable[bytes], link: int, order: str) -> Iterator[bytes]:
    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = struct.pack(order + "I", len(body) + 12)
        return struct.pack(order + "I", kind) + size + body + size

    yield block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    yield block(1, struct.pack(order + "HHI", link, 0, 0))
    for one in frames:
        yield block(6, struct.pack(order + "IIIII", 0, 0, 0, len(one), len(one)) + one)


def _ip(packet: Packet, network: Network, flags: int = 16) -> bytes:
    from_client, position, data = packet
    ports = (50000, _SERVER_PORT) if from_client else (_SERVER_PORT, 50000)
    sequence = (_FIRST + 1 + position) % 2**32
    tcp = struct.pack(">HHIIBBHHH", *ports, sequence, 0, 5 << 4, flags, 0, 0, 0) + data
    ends = (b"\x0a\0\0\x01", b"\x0a\0\0\x02")
    source, target = ends if from_client else ends[::-1]
    _, header = _LINKS[network.link]
    if network.six:
        header = header[:-2] + b"\x86\xdd" if header and network.link != "loopback" else header
        pad = bytes(12)
        return header + struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + pad + source + pad + target + tcp
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + source + target + tcp
    return header + ip + bytes(max(0, 46 - len(ip)))  # the shortest frame of Ethernet has 60 bytes
