"""An S3 server that keeps objects in memory: `python -m benchmarks.memory_store [MIB_PER_SECOND]`.

The server has what a recorder needs: conditional writes, uploads in parts, copies of parts, ranges, listings
and removals. It prints its port. The argument limits what it receives, in MiB a second.
"""

from __future__ import annotations

import math
import re
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

Body = list[bytes]
"""Content of an object, as the parts that were uploaded."""

_NUMBERS: Final = count(1)


class Objects:
    """The objects of all buckets, by path, and the parts of unfinished uploads."""

    def __init__(self) -> None:
        self.bodies: dict[str, Body] = {}
        self.tags: dict[str, str] = {}
        self.uploads: dict[str, dict[int, Body]] = {}

    def put(self, path: str, body: Body) -> str:
        """Create or replace an object; return its new entity tag."""
        self.bodies[path], self.tags[path] = body, f'"{next(_NUMBERS)}"'
        return self.tags[path]


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects = Objects()
    line = threading.Lock()
    speed = float(sys.argv[1]) if len(sys.argv) > 1 else math.inf
    """Largest number of MiB to receive in a second, on all connections."""

    def handle_any(self) -> None:
        """Answer a request."""
        url = urlsplit(self.path)
        self._path = unquote(url.path).rstrip("/")
        self._query = {name: values[0] for name, values in parse_qs(url.query, True).items()}
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.line:
            time.sleep(len(self._body) / (1 << 20) / self.speed)
        getattr(self, f"_{self.command.lower()}")()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""

    def _put(self) -> None:
        source = self.headers.get("x-amz-copy-source")
        body = self.objects.bodies["/" + unquote(source).lstrip("/")] if source else [self._body]
        if upload := self._query.get("uploadId"):
            self.objects.uploads[upload][int(self._query["partNumber"])] = body
            tag = f'"{next(_NUMBERS)}"'
            self._answer(200, f"<CopyPartResult><ETag>{escape(tag)}</ETag></CopyPartResult>", ETag=tag)
        elif self._may_write():
            self._answer(200, ETag=self.objects.put(self._path, body))

    def _post(self) -> None:
        if "uploads" in self._query:
            upload = str(next(_NUMBERS))
            self.objects.uploads[upload] = {}
            text = f"<UploadId>{upload}</UploadId>"
            self._answer(200, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>")
        elif "delete" in self._query:
            names = re.findall("<Key>(.*?)</Key>", self._body.decode())
            for name in names:
                self.objects.bodies.pop(f"{self._path}/{name}", None)
            text = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            self._answer(200, f"<DeleteResult>{text}</DeleteResult>")
        elif self._may_write():
            parts = self.objects.uploads.pop(self._query["uploadId"])
            tag = self.objects.put(self._path, [one for number in sorted(parts) for one in parts[number]])
            text = f"<ETag>{escape(tag)}</ETag>"
            self._answer(200, f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>")

    def _delete(self) -> None:
        self.objects.bodies.pop(self._path, None)
        self._answer(204)

    def _get(self) -> None:
        if "list-type" in self._query:
            self._list()
        elif (body := self.objects.bodies.get(self._path)) is None:
            self._answer(404)
        else:
            size = sum(map(len, body))
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            first, last = (int(found[1]), int(found[2] or size)) if found else (0, size)
            content = b"".join(body)[first : last + 1] if self.command == "GET" else b""
            self._answer(
                206 if found else 200,
                content,
                size=size,
                ETag=self.objects.tags[self._path],
                Content_Range=f"bytes {first}-{first + len(content) - 1}/{size}",
                Last_Modified=formatdate(usegmt=True),
            )

    _head = _get

    def _list(self) -> None:
        prefix, after = (self._query.get(name, "") for name in ("prefix", "start-after"))
        text, bucket = "<IsTruncated>false</IsTruncated>", f"{self._path}/"
        for path, body in sorted(self.objects.bodies.items()):
            name = path.removeprefix(bucket)
            if path.startswith(bucket + prefix) and name > after:
                text += f"<Contents><Key>{escape(name)}</Key><Size>{sum(map(len, body))}</Size><ETag>1</ETag>"
                text += "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        self._answer(200, f"<ListBucketResult>{text}</ListBucketResult>")

    def _may_write(self) -> bool:
        """Check the preconditions of a write; answer the request if they are not met."""
        tag = self.objects.tags.get(self._path) if self._path in self.objects.bodies else None
        wanted = self.headers.get("If-Match")
        if (self.headers.get("If-None-Match") and tag) or (wanted and wanted != tag):
            self._answer(412)
            return False
        return True

    def _answer(
        self, status: int, content: str | bytes = b"", size: int | None = None, **headers: str
    ) -> None:
        sent = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(size if self.command == "HEAD" and size else len(sent)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)


class Server(ThreadingHTTPServer):
    """A server that does not wait for open connections when it ends."""

    daemon_threads = True


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
