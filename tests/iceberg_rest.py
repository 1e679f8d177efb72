"""A catalogue server with Iceberg's REST protocol, for tests: pyiceberg's SQLite catalogue behind HTTP.

It answers the requests of pyiceberg for namespaces and tables (Iceberg's `rest-catalog-open-api.yaml`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest

ERRORS = {
    NoSuchNamespaceError: (404, "NoSuchNamespaceException"),
    NoSuchTableError: (404, "NoSuchTableException"),
    NamespaceAlreadyExistsError: (409, "AlreadyExistsException"),
    TableAlreadyExistsError: (409, "AlreadyExistsException"),
    CommitFailedException: (409, "CommitFailedException"),
}
"""HTTP status and error type of the answer for each exception ("IcebergErrorResponse")."""


class Requests:
    """Answers requests: one function for each operation of the protocol, with the operation's name."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog = catalog
        self.lose_answers = 0
        """Number of next commits that are made, but answered with a gateway timeout."""

    def config(self, **_: str) -> Any:
        return {"defaults": {}, "overrides": {}}

    def list_namespaces(self, parent: str = "", **_: str) -> Any:
        return {"namespaces": self.catalog.list_namespaces(_parts(parent))}

    def create_namespace(self, body: bytes) -> Any:
        namespace = json.loads(body)["namespace"]
        self.catalog.create_namespace(tuple(namespace))
        return {"namespace": namespace, "properties": {}}

    def load_namespace(self, namespace: str, **_: str) -> Any:
        properties = self.catalog.load_namespace_properties(_parts(namespace))
        return {"namespace": _parts(namespace), "properties": properties}

    def list_tables(self, namespace: str, **_: str) -> Any:
        tables = self.catalog.list_tables(_parts(namespace))
        return {"identifiers": [{"namespace": of, "name": name} for *of, name in tables]}

    def create_table(self, namespace: str, body: bytes) -> Any:
        wanted = CreateTableRequest.model_validate_json(body)
        name = (*_parts(namespace), wanted.name)
        self.catalog.create_table(name, wanted.table_schema, wanted.location, properties=wanted.properties)
        return self.load_table(namespace, wanted.name)

    def load_table(self, namespace: str, table: str, **_: str) -> Any:
        found = self.catalog.load_table((*_parts(namespace), table))
        answer: dict[str, Any] = {"metadata-location": found.metadata_location, "metadata": found.metadata}
        return json.loads(TableResponse(**answer).model_dump_json())

    def update_table(self, namespace: str, table: str, body: bytes) -> Any:
        wanted = CommitTableRequest.model_validate_json(body)
        found = self.catalog.load_table((*_parts(namespace), table))
        self.catalog.commit_table(found, wanted.requirements, wanted.updates)
        if self.lose_answers:
            self.lose_answers -= 1
            raise ConnectionError
        return self.load_table(namespace, table)

    def drop_table(self, namespace: str, table: str, **_: str) -> Any:
        self.catalog.drop_table((*_parts(namespace), table))

    def rename_table(self, body: bytes) -> Any:
        wanted = json.loads(body)
        old, new = ((*one["namespace"], one["name"]) for one in (wanted["source"], wanted["destination"]))
        self.catalog.rename_table(old, new)


_TABLES = "/v1/namespaces/(?P<namespace>[^/]+)/tables"
ROUTES: dict[tuple[str, str], Callable[..., Any]] = {
    ("GET", "/v1/config"): Requests.config,
    ("GET", "/v1/namespaces"): Requests.list_namespaces,
    ("POST", "/v1/namespaces"): Requests.create_namespace,
    ("GET", "/v1/namespaces/(?P<namespace>[^/]+)"): Requests.load_namespace,
    ("GET", _TABLES): Requests.list_tables,
    ("POST", _TABLES): Requests.create_table,
    ("GET", f"{_TABLES}/(?P<table>[^/]+)"): Requests.load_table,
    ("POST", f"{_TABLES}/(?P<table>[^/]+)"): Requests.update_table,
    ("DELETE", f"{_TABLES}/(?P<table>[^/]+)"): Requests.drop_table,
    ("POST", "/v1/tables/rename"): Requests.rename_table,
}
"""The function that answers requests, by HTTP method and pattern of the path."""


@contextmanager
def serve_catalog(folder: Path, **properties: str) -> Iterator[tuple[str, Requests]]:
    """Serve a catalogue whose database is in a folder; yield its URI, and the object that answers requests.

    Args:
        folder: Folder for the catalogue's SQLite file.
        properties: Properties of the catalogue, such as those of an object store.
    """
    requests = Requests(SqlCatalog("rest", uri=f"sqlite:///{folder}/rest.db?timeout=60", **properties))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            url = urlsplit(self.path)
            options: dict[str, Any] = {name: texts[0] for name, texts in parse_qs(url.query).items()}
            if self.command == "POST":
                options = {"body": self.rfile.read(int(self.headers["Content-Length"]))}
            code, content = self._result(url.path, options)
            text = b"" if content is None else json.dumps(content).encode()
            self.send_response(code if text else 204)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _result(self, path: str, options: dict[str, Any]) -> tuple[int, Any]:
            for (method, pattern), function in ROUTES.items():
                if method == self.command and (found := re.fullmatch(pattern, path)):
                    named = {name: unquote(text) for name, text in found.groupdict().items()}
                    try:
                        return 200, function(requests, **named, **options)
                    except ConnectionError:
                        return 504, {"error": {"message": "timeout", "type": "Gateway", "code": 504}}
                    except tuple(ERRORS) as error:
                        code, name = ERRORS[type(error)]
                        return code, {"error": {"message": str(error), "type": name, "code": code}}
            return 501, {"error": {"message": path, "type": "UnsupportedOperationException", "code": 501}}

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()


def _parts(namespace: str) -> tuple[str, ...]:
    """Return the parts of a namespace, which the protocol joins with the unit separator (0x1F)."""
    return tuple(namespace.split("\x1f")) if namespace else ()
