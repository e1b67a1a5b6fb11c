"""Connections between hosts, and to ddlrun: each begins with a proof that the other end knows the secret."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

NONCE_BYTES = 32
# The head of a message: its length, the CRC of its bytes, and the CRC of these two numbers.
HEAD = struct.Struct(">III")
LONGEST_MESSAGE = 1 << 20
# Time limits in seconds: of authentication, and without any progress.
GREETING_SECONDS, SILENCE_SECONDS = 20.0, 120.0
BACKLOG = 4096


class LinkError(Exception):
    """A connection failed; the text says why."""


class MessageError(LinkError):
    """A message was altered on the way, or is too long."""


def listen(link: socket.socket) -> socket.socket:
    """Return a socket that listens on a free port of this end's address of a connection."""
    listener = socket.socket(link.family)
    listener.bind((link.getsockname()[0], 0, *link.getsockname()[2:]))
    listener.listen(BACKLOG)
    return listener


def connect(addresses: Iterable[str], port: int, secret: str, body: Mapping[str, Any]) -> socket.socket:
    """Reach another end, prove that this end knows the secret, send a request, and wait for the start of the reply.

    An end that closes the connection instead is tried once more: the request may have been altered on the way. Raises
    LinkError.
    """
    for _ in range(2):
        link = reach(addresses, port)
        prove(link, secret, body)
        with contextlib.suppress(ConnectionResetError):
            if link.recv(1, socket.MSG_PEEK):
                return link
        link.close()
    raise LinkError("the connection was closed")


def reach(addresses: Iterable[str], port: int) -> socket.socket:
    """Connect to the first address that can be reached. Raises LinkError if none can."""
    error: Exception = LinkError("no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), GREETING_SECONDS)
        except OSError as failure:
            error = failure
    raise LinkError(f"cannot connect to port {port} of {', '.join(addresses) or 'no address'}: {error}")


def prove(link: socket.socket, secret: str, body: Mapping[str, Any]) -> None:
    """Prove that this end knows the secret, and send a request. Raises LinkError where the other end has closed."""
    link.settimeout(SILENCE_SECONDS)
    nonce = receive_exactly(link, NONCE_BYTES)
    text = json.dumps(body)
    send_message(link, {"body": text, "code": _code(secret, nonce, text)})


def welcome(link: socket.socket, secret: str) -> dict[str, Any] | None:
    """Return the request of a new connection; None if the other end does not know the secret."""
    link.settimeout(GREETING_SECONDS)
    nonce = os.urandom(NONCE_BYTES // 2).hex().encode()
    try:
        link.sendall(nonce)
        message = json.loads(receive_message(link))
        text, code = str(message["body"]), str(message["code"])
        if not hmac.compare_digest(code.encode(), _code(secret, nonce, text).encode()):
            return None
        body = json.loads(text)
    except (OSError, LinkError, ValueError, KeyError, TypeError):
        return None
    link.settimeout(SILENCE_SECONDS)
    return body if isinstance(body, dict) else None


def send_message(link: socket.socket, message: object) -> bytes:
    """Send a message as JSON; return that."""
    data = json.dumps(message).encode()
    link.sendall(_pack_head(len(data), zlib.crc32(data)) + data)
    return data


def receive_message(link: socket.socket, longest: int = LONGEST_MESSAGE) -> bytes:
    """Return the JSON of the next message. Raises LinkError where there is none, or MessageError."""
    head = receive_exactly(link, HEAD.size)
    size, code, _ = HEAD.unpack(head)
    if head != _pack_head(size, code):
        raise MessageError("a message was altered on the way")
    if size > longest:
        raise MessageError(f"a message of {size} bytes is too long")
    data = receive_exactly(link, size)
    if zlib.crc32(data) != code:
        raise MessageError("a message was altered on the way")
    return data


def _pack_head(size: int, code: int) -> bytes:
    return HEAD.pack(size, code, zlib.crc32(b"%d %d" % (size, code)))


def receive_exactly(link: socket.socket, size: int) -> bytes:
    """Return the next bytes. Raises LinkError where there are not as many."""
    data = bytearray()
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise LinkError("the connection was closed")
        data += part
    return bytes(data)


def _code(secret: str, nonce: bytes, text: str) -> str:
    return hmac.new(bytes.fromhex(secret), nonce + text.encode(), hashlib.sha256).hexdigest()
