"""Authenticate the only user of a stand-in server with SCRAM-SHA-256.

The code follows RFC 5802, RFC 7677 and PostgreSQL's auth-scram.c.

Over TLS, SCRAM-SHA-256-PLUS with the channel binding tls-server-end-point (RFC 5929) is also supported.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
import stringprep
import unicodedata
from collections.abc import Sequence
from typing import Final

import msgspec

from logicalrep.standin import protocol
from logicalrep.standin.frontend import MessageReader, read_message
from logicalrep.standin.protocol import ServerError

_MECHANISM: Final = "SCRAM-SHA-256"
_BINDING_MECHANISM: Final = "SCRAM-SHA-256-PLUS"
_BINDING_FLAG: Final = "p=tls-server-end-point"
_ITERATIONS: Final = 4096
"""Number of PBKDF2 iterations: PostgreSQL's default for the setting scram_iterations."""

_CLIENT_FIRST: Final = re.compile("([^,]*),,([^,]*,r=([^,]+)(?:,.*)?)", re.DOTALL)
"""Matches the client's first message: the channel binding flag, then the client-first-message-bare."""
_CLIENT_FINAL: Final = re.compile("(c=([^,]+),r=([^,]+)(?:,.*)?),p=(.*)", re.DOTALL)
"""Matches the client's final message: the part without the proof, then the proof."""


class ScramVerifier(msgspec.Struct, frozen=True):
    """SCRAM-SHA-256 verifier: authenticates a user without storing the password."""

    user: str
    """Name of the only user that may connect."""
    salt: bytes
    """Random salt with which the password is hashed."""
    stored_key: bytes
    """SCRAM StoredKey, which verifies the client's proof."""
    server_key: bytes
    """SCRAM ServerKey, with which the server signs its final message."""

    @classmethod
    def from_password(cls, user: str, password: str) -> ScramVerifier:
        """Create a verifier with a random salt for a user's password."""
        salt = secrets.token_bytes(16)
        salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, _ITERATIONS)
        client_key = _hmac(salted, b"Client Key")
        return cls(user, salt, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key"))


def saslprep(password: str) -> str:
    """Return the password normalized by SASLprep (RFC 4013): equivalent Unicode texts become equal."""
    mapped = (" " if stringprep.in_table_c12(c) else c for c in password if not stringprep.in_table_b1(c))
    return unicodedata.normalize("NFKC", "".join(mapped))


async def authenticate(
    verifier: ScramVerifier,
    user: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    certificate_hash: bytes | None = None,
) -> None:
    """Authenticate a client with SCRAM-SHA-256.

    Args:
        verifier: SCRAM verifier of the only user that may connect.
        user: User name from the startup packet.
        reader: Stream that receives from the client.
        writer: Stream that sends to the client.
        certificate_hash: SHA-256 of the server's certificate for channel binding; None offers no channel
            binding.

    Raises:
        ServerError: Authentication failed.
        IncompleteReadError: The connection ended.
    """
    bindings = {} if certificate_hash is None else {_BINDING_MECHANISM: certificate_hash}
    bindings |= {_MECHANISM: b""}
    mechanisms = b"".join(map(protocol.encode_string, bindings)) + b"\0"
    writer.write(protocol.authentication(10, mechanisms))
    body = MessageReader(await _read_sasl_response(reader))
    mechanism = body.string()
    if mechanism not in bindings:
        raise ServerError("08P01", "client selected an invalid SASL authentication mechanism", fatal=True)
    flag, client_first_bare, client_nonce = _parse(_CLIENT_FIRST, body.value() or b"")
    _check_binding_flag(flag, mechanism, is_offered=certificate_hash is not None)
    binding = f"{flag},,".encode() + bindings[mechanism]
    nonce = client_nonce + base64.b64encode(secrets.token_bytes(18)).decode()
    server_first = f"r={nonce},s={base64.b64encode(verifier.salt).decode()},i={_ITERATIONS}"
    writer.write(protocol.authentication(11, server_first.encode()))

    client_final = await _read_sasl_response(reader)
    without_proof, sent_binding, sent_nonce, proof = _parse(_CLIENT_FINAL, client_final)
    is_bound = sent_binding == base64.b64encode(binding).decode()
    if not is_bound and mechanism == _BINDING_MECHANISM:
        raise ServerError("28000", "SCRAM channel binding check failed", fatal=True)
    if not is_bound or sent_nonce != nonce:
        raise _malformed()
    auth_message = f"{client_first_bare},{server_first},{without_proof}".encode()
    signature = _hmac(verifier.stored_key, auth_message)
    client_key = bytes(a ^ b for a, b in zip(_decode_proof(proof), signature, strict=True))
    is_valid = hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)
    # An unknown user goes through the same exchange, so that clients cannot find out which users exist.
    if not is_valid or user != verifier.user:
        raise ServerError("28P01", f'password authentication failed for user "{user}"', fatal=True)
    server_signature = base64.b64encode(_hmac(verifier.server_key, auth_message))
    writer.write(protocol.authentication(12, b"v=" + server_signature))


async def _read_sasl_response(reader: asyncio.StreamReader) -> bytes:
    tag, body = await read_message(reader)
    if tag != b"p":
        raise ServerError("08P01", f"expected SASL response, got message type {tag[0]}", fatal=True)
    return body


def _check_binding_flag(flag: str, mechanism: str, *, is_offered: bool) -> None:
    """Check the client's channel binding flag, gs2-cbind-flag (read_client_first_message).

    Args:
        flag: The flag.
        mechanism: SASL mechanism that the client selected.
        is_offered: Whether the server offers channel binding.

    Raises:
        ServerError: The flag does not suit the mechanism, or denies that the server offers channel binding.
    """
    if flag == "y" and is_offered:
        raise ServerError(
            "28000",
            "the client supports SCRAM channel binding but thinks the server does not",
            fatal=True,
        )
    if flag not in ((_BINDING_FLAG,) if mechanism == _BINDING_MECHANISM else ("n", "y")):
        raise ServerError("08P01", f'channel binding "{flag}" is not valid for {mechanism}', fatal=True)


def _parse(pattern: re.Pattern[str], message: bytes) -> Sequence[str]:
    match = pattern.fullmatch(message.decode("ascii")) if message.isascii() else None
    if match is None:
        raise _malformed()
    return match.groups()


def _decode_proof(text: str) -> bytes:
    try:
        proof = base64.b64decode(text, validate=True)
    except ValueError:
        raise _malformed() from None
    if len(proof) != hashlib.sha256().digest_size:
        raise _malformed()
    return proof


def _malformed() -> ServerError:
    return ServerError("08P01", "malformed SCRAM message", fatal=True)


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
