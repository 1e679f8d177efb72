"""Who may connect: anybody, or one user with a password, by SCRAM-SHA-256 (RFC 5802, 7677; auth-scram.c).

Over TLS it also has SCRAM-SHA-256-PLUS, with the channel binding tls-server-end-point (RFC 5929).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import stringprep
import unicodedata
from typing import Final

import msgspec

from pgoutput.standin import protocol
from pgoutput.standin.incoming import Body, read_message
from pgoutput.standin.protocol import Refused

MECHANISM: Final = "SCRAM-SHA-256"
BOUND_MECHANISM: Final = "SCRAM-SHA-256-PLUS"
_BINDING: Final = "p=tls-server-end-point"
_ITERATIONS: Final = 4096
"""As the setting scram_iterations has it."""


class Verifier(msgspec.Struct, frozen=True):
    """What a server keeps of a user's password: it tells who knows it, but not what it is."""

    user: str
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, user: str, password: str) -> Verifier:
        """The verifier of a password."""
        salt = secrets.token_bytes(16)
        salted = hashlib.pbkdf2_hmac("sha256", prepared(password).encode(), salt, _ITERATIONS)
        client_key = _mac(salted, b"Client Key")
        return cls(user, salt, hashlib.sha256(client_key).digest(), _mac(salted, b"Server Key"))


def prepared(password: str) -> str:
    """The password as SASLprep maps it (RFC 4013): so two ways to type it are the same."""
    mapped = (" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    return unicodedata.normalize("NFKC", "".join(mapped))


async def authenticate(
    verifier: Verifier | None,
    user: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    certificate_hash: bytes | None = None,
) -> None:
    """See that a client may connect, and tell it so.

    Args:
        verifier: Of the only user there is; None trusts everybody.
        user: Who the client says it is.
        reader: From the client.
        writer: To it.
        certificate_hash: SHA-256 of the server's certificate, which channel binding compares; None offers no
            channel binding.

    Raises:
        Refused: It may not.
        IncompleteReadError: The connection ended.
    """
    if verifier is not None:
        await _exchange(verifier, user, reader, writer, certificate_hash)
    writer.write(protocol.authentication(0))


async def _exchange(
    verifier: Verifier,
    user: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    certificate_hash: bytes | None,
) -> None:
    bound = {} if certificate_hash is None else {BOUND_MECHANISM: certificate_hash}
    bindings = bound | {MECHANISM: b""}
    writer.write(protocol.authentication(10, b"".join(map(protocol.text, bindings)) + b"\0"))
    body = Body(await _password_message(reader))
    mechanism = body.string()
    if mechanism not in bindings:
        raise Refused("08P01", "client selected an invalid SASL authentication mechanism", fatal=True)
    first = _ascii(body.value() or b"")
    header, bare = _header(first)
    _check_binding(header.partition(",")[0], mechanism, is_offered=certificate_hash is not None)
    binding = header.encode() + bindings[mechanism]
    nonce = _attribute(bare.split(",")[1:2], "r") + base64.b64encode(secrets.token_bytes(18)).decode()
    challenge = f"r={nonce},s={base64.b64encode(verifier.salt).decode()},i={_ITERATIONS}"
    writer.write(protocol.authentication(11, challenge.encode()))

    final = _ascii(await _password_message(reader))
    without_proof, mark, proof = final.rpartition(",p=")
    parts = without_proof.split(",")
    if not mark:
        raise _malformed()
    if _attribute(parts[:1], "c") != base64.b64encode(binding).decode():
        if mechanism == BOUND_MECHANISM:
            raise Refused("28000", "SCRAM channel binding check failed", fatal=True)
        raise _malformed()
    if _attribute(parts[1:2], "r") != nonce:
        raise _malformed()
    said = f"{bare},{challenge},{without_proof}".encode()
    signature = _mac(verifier.stored_key, said)
    client_key = bytes(a ^ b for a, b in zip(_decoded(proof), signature, strict=True))
    right = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
    # Whoever does not exist is asked for a password all the same, so that nobody learns who does.
    if not right or user != verifier.user:
        raise Refused("28P01", f'password authentication failed for user "{user}"', fatal=True)
    answer = base64.b64encode(_mac(verifier.server_key, said))
    writer.write(protocol.authentication(12, b"v=" + answer))


async def _password_message(reader: asyncio.StreamReader) -> bytes:
    tag, body = await read_message(reader)
    if tag != b"p":
        raise Refused("08P01", f"expected SASL response, got message type {tag[0]}", fatal=True)
    return body


def _header(first: str) -> tuple[str, str]:
    """The GS2 header of the client's first message, and what follows it."""
    flag, mark, rest = first.partition(",")
    name, other_mark, bare = rest.partition(",")
    if not (mark and other_mark) or name:
        raise _malformed()
    return f"{flag},,", bare


def _check_binding(flag: str, mechanism: str, *, is_offered: bool) -> None:
    """Check that a client's channel binding flag fits the mechanism (read_client_first_message)."""
    if flag == "y" and is_offered:
        raise Refused(
            "28000",
            "the client supports SCRAM channel binding but thinks the server does not",
            fatal=True,
        )
    if flag not in ((_BINDING,) if mechanism == BOUND_MECHANISM else ("n", "y")):
        raise Refused("08P01", f'channel binding "{flag}" does not go with {mechanism}', fatal=True)


def _attribute(parts: list[str], name: str) -> str:
    if len(parts) != 1 or not parts[0].startswith(f"{name}=") or len(parts[0]) < 3:
        raise _malformed()
    return parts[0][2:]


def _decoded(proof: str) -> bytes:
    try:
        found = base64.b64decode(proof, validate=True)
    except ValueError:
        raise _malformed() from None
    if len(found) != hashlib.sha256().digest_size:
        raise _malformed()
    return found


def _ascii(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise _malformed() from None


def _malformed() -> Refused:
    return Refused("08P01", "malformed SCRAM message", fatal=True)


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
