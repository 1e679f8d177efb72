"""The HTTP server of `--metrics`: metrics for Prometheus, and two pages about the health of the process."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import typer

from pgoutput._extras import require
from pgoutput.cli.metrics import Metrics

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


_LAST_SCRAPE_SECONDS: Final = 90.0
"""Largest number of seconds to wait for the last scrape; Prometheus scrapes each minute by default."""


class Observed(Protocol):
    """A recorder or replica whose health is served."""

    def stuck(self) -> str:
        """Return why the recorder or replica counts as stuck; an empty text if it does not."""

    def not_ready(self) -> str:
        """Return why the recorder or replica does not do its work; an empty text if it does."""


@contextmanager
def serve_metrics(address: str | None, metrics: Metrics, observed: Iterable[Observed]) -> Iterator[None]:
    """Serve `/metrics`, `/healthz` and `/readyz` during a `with` block.

    If the recorder has lost changes, the block's end waits for the next scrape, for 90 seconds at most.

    The health pages answer `ok` with status 200, or the reasons with status 503.

    Args:
        address: HOST:PORT to listen on; None to serve nothing.
        metrics: Values of the metrics.
        observed: The recorder and replica of this process.

    Raises:
        typer.BadParameter: The address is not HOST:PORT.
        MissingExtraError: prometheus_client is not installed.
        OSError: The address cannot be used.
    """
    if address is None:
        yield
        return
    host, port = _parse_address(address)
    require("metrics", "prometheus_client")
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry()
    registry.register(metrics)
    watched = list(observed)
    pages: dict[str, Callable[..., Iterable[bytes]]] = {
        "/metrics": make_wsgi_app(registry),
        "/healthz": _health_page(lambda: [one.stuck() for one in watched]),
        "/readyz": _health_page(lambda: [one.stuck() or one.not_ready() for one in watched]),
    }

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return pages.get(environ["PATH_INFO"], _not_found)(environ, start_response)

    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = type("Server", (_Server,), {"address_family": family})(place[:2], _QuietHandler)
    except OSError as error:
        raise OSError(error.errno, f"metrics cannot be served: {error.strerror}", address) from None
    with server:
        server.set_app(application)
        thread = Thread(target=server.serve_forever, name="pgoutput-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            if metrics.get("pgoutput_recorder_changes_lost"):
                _await_scrape(metrics)
            server.shutdown()
            thread.join()


def _await_scrape(metrics: Metrics) -> None:
    """Wait until the last values are scraped, for the alert that changes are lost; a signal ends the wait."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    metrics.scraped.clear()
    if metrics.scraped.wait(_LAST_SCRAPE_SECONDS):
        time.sleep(1.0)  # until the answer is sent


def _parse_address(address: str) -> tuple[str, int]:
    if (found := re.fullmatch(r"\[?([^\[\]]+)\]?:(\d+)", address)) is None or int(found[2]) > 65535:
        raise typer.BadParameter(
            f"expected HOST:PORT such as 127.0.0.1:9187, not {address}", param_hint="--metrics"
        )
    return found[1], int(found[2])


def _health_page(find_reasons: Callable[[], list[str]]) -> Callable[..., Iterable[bytes]]:
    def page(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        reasons = list(filter(None, find_reasons()))
        return _answer(start_response, "503 Service Unavailable" if reasons else "200 OK", reasons or ["ok"])

    return page


def _not_found(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return _answer(start_response, "404 Not Found", ["/metrics, /healthz and /readyz are here"])


def _answer(start_response: StartResponse, status: str, lines: Iterable[str]) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{line}\n".encode() for line in lines]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""
