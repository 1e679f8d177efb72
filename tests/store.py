"""Moto's S3 server for tests, and a proxy before it that injects faults."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal

BUCKET: Final = "bucket"

PATIENCE: Final = 120.0
"""Seconds that the server may take to start."""

Fault = Literal["", "refuse", "401", "403", "cut", "cut-answer", "drop-answer"]
"""What the proxy does with a request: nothing, answer with an error (503 for `refuse`), end the connection in
the middle of the request's body or of the answer's, or end it after the store has carried out the request."""


def settings(port: int) -> dict[str, str]:
    """Return the environment variables with which S3 clients use the server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "s3kr3t",
    }


@contextmanager
def moto() -> Iterator[int]:
    """Run moto's server with an empty bucket; yield its port."""
    import boto3

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + PATIENCE
            while not _answers(port):
                assert time.monotonic() < deadline
                assert server.poll() is None
                time.sleep(0.05)
            client = boto3.client(
                "s3",
                endpoint_url=f"http://127.0.0.1:{port}",
                region_name="us-east-1",
                aws_access_key_id="key",
                aws_secret_access_key="s3kr3t",
            )
            client.create_bucket(Bucket=BUCKET)
            client.close()
            yield port
        finally:
            server.kill()


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: Any) -> None:
        pass  # a client has ended its connection


class Credentials:
    """A server that gives credentials to containers; a context manager.

    Attributes:
        status: HTTP status of the answers.
        given: When each access key expires, by its ID.

    Args:
        seconds: Lifetime of credentials, in seconds.
    """

    TOKEN: Final = "the token"

    def __init__(self, seconds: float) -> None:
        self.status = 200
        self.given: dict[str, float] = {}
        credentials = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_allowed = self.headers.get("Authorization") == credentials.TOKEN
                status = credentials.status if is_allowed else 401  # the test may change it meanwhile
                self.send_response(status)
                self.end_headers()
                if status == 200:
                    self.wfile.write(credentials._give(seconds))

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url: str = f"http://127.0.0.1:{self._server.server_address[1]}/credentials"

    def is_valid(self, key: str) -> bool:
        """Return whether the access key with this ID was given, and has not expired."""
        return self.given.get(key, 0.0) > time.time()

    def _give(self, seconds: float) -> bytes:
        key, end = f"KEY{len(self.given)}", datetime.fromtimestamp(int(time.time() + seconds), UTC)
        self.given[key] = end.timestamp()
        answer = {"AccessKeyId": key, "SecretAccessKey": "s3kr3t", "Token": "t", "RoleArn": "arn"}
        return json.dumps(answer | {"Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ")}).encode()

    def __enter__(self) -> Credentials:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Proxy:
    """A proxy for S3 that injects faults; a context manager.

    Attributes:
        port: Port of the proxy.
        fault: Called with method and path of each request; returns the fault to inject. It may also wait.
        answer: Called with method, path and body of each answer; returns the body to send.
        is_valid: Called with the ID of each request's access key, empty without one; if it returns False, the
            request is answered with 403.
        requests: Method and path of each request.
    """

    def __init__(self, port: int) -> None:
        self.fault: Callable[[str, str], Fault] = lambda method, path: ""
        self.answer: Callable[[str, str, bytes], bytes] = lambda method, path, body: body
        self.is_valid: Callable[[str], bool] = lambda key: True
        self.requests: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy._handle(self, port)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handle(self, client: BaseHTTPRequestHandler, port: int) -> None:
        method, path = client.command, client.path
        self.requests.append((method, path))
        found = re.search(r"Credential=([^/]*)/", client.headers.get("Authorization") or "")
        fault = self.fault(method, path) if self.is_valid(found[1] if found else "") else "403"
        length = int(client.headers.get("Content-Length") or 0)
        if fault == "cut":
            client.rfile.read(length // 2)
            client.close_connection = True
            return
        body = client.rfile.read(length)
        if fault in ("refuse", "401", "403"):
            client.send_response(503 if fault == "refuse" else int(fault))
            client.send_header("Content-Length", "0")
            client.end_headers()
            return
        store = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            store.request(method, path, body, dict(client.headers))
            answer = store.getresponse()
            content = self.answer(method, path, answer.read())
        finally:
            store.close()
        if fault == "drop-answer":
            client.close_connection = True
            return
        client.send_response(answer.status)
        is_head = method == "HEAD"
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server") and (
                name.lower() != "content-length" or is_head
            ):
                client.send_header(name, value)
        if not is_head:
            client.send_header("Content-Length", str(len(content)))
        client.end_headers()
        if not is_head:
            client.wfile.write(content[: len(content) // 2] if fault == "cut-answer" else content)
        client.close_connection = fault == "cut-answer"


def environment(port: int) -> dict[str, str]:
    """Return the environment of this process with the settings of the server."""
    return {**os.environ, **settings(port)}
