"""The metrics that `--metrics` serves to Prometheus, and two pages about the health of the process."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import typer

from logicalrep._extras import require

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from prometheus_client.metrics_core import Metric as Family

_LAST_SCRAPE_SECONDS: Final = 90.0
"""Largest number of seconds to wait for the last scrape; Prometheus scrapes each minute by default."""


class Metric(NamedTuple):
    """Name, help text and names of the labels of a metric for Prometheus."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """The type of the metric: as Prometheus advises, the names of counters end with `_total`."""
        return "counter" if self.name.endswith("_total") else "gauge"


Value: TypeAlias = float | Callable[[], float]
"""The value of a metric, or a function that returns the value when the metric is served."""


class Metrics:
    """The current values of metrics. Implements the interface `Collector` of prometheus_client.

    Attributes:
        scraped: An event that is set when all values were collected.
        tables: A function that returns the values of the label `table` to serve; None to serve all.

    Args:
        definitions: Metrics to serve. Counters without labels begin with 0; others have no value at first.
    """

    def __init__(self, definitions: Iterable[Metric]) -> None:
        self._lock = Lock()
        self.scraped: Event = Event()
        self.tables: Callable[[], Container[str]] | None = None
        self._metrics = {one.name: one for one in definitions}
        self._values: dict[str, dict[tuple[str, ...], Value]] = {
            one.name: {(): 0.0} if one.kind == "counter" and not one.labels else {}
            for one in self._metrics.values()
        }

    def set(self, name: str, value: Value | None, *labels: str) -> None:
        """Set the value of a metric; None removes the value."""
        with self._lock:
            if value is None:
                self._values[name].pop(labels, None)
            else:
                self._values[name][labels] = value

    def get(self, name: str) -> Value | None:
        """Return the value of a metric without labels; None if it has no value."""
        with self._lock:
            return self._values.get(name, {}).get(())

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Add a number to the value of a counter."""
        with self._lock:
            value = self._values[name].get(labels, 0.0)
            assert isinstance(value, float | int)
            self._values[name][labels] = value + amount

    def collect(self) -> Iterator[Family]:
        """Yield the metrics in the classes of prometheus_client."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        classes = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        tables = None if self.tables is None else self.tables()
        for name, metric in self._metrics.items():
            family = classes[metric.kind](name, metric.help, labels=metric.labels)
            with self._lock:
                values = list(self._values[name].items())
            for labels, value in values:
                if tables is not None and "table" in metric.labels and labels[0] not in tables:
                    continue
                family.add_metric(labels, value() if callable(value) else value)
            yield family
        self.scraped.set()


class Observed(Protocol):
    """A recorder or replica whose health is served."""

    def stuck(self) -> str:
        """Return why the recorder or replica seems to hang, for `/healthz`; an empty text if it does not."""

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
        thread = Thread(target=server.serve_forever, name="logicalrep-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            if metrics.get("logicalrep_recorder_changes_lost"):
                _await_scrape(metrics)
            server.shutdown()
            thread.join()


def _await_scrape(metrics: Metrics) -> None:
    """Wait until Prometheus has scraped the metric of lost changes, so that its alert can fire.

    The wait ends after 90 seconds, or at a signal.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    metrics.scraped.clear()
    if metrics.scraped.wait(_LAST_SCRAPE_SECONDS):
        time.sleep(1.0)  # until the HTTP response is sent


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
