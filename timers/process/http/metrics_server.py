"""Serves the metrics and the health of a process over HTTP."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry

from timers.errors import SettingsError
from timers.process.hosts import in_url, without_brackets
from timers.process.http.open_connections import OpenConnections
from timers.process.metrics import encoder

_CLIENT_TIMEOUT_S = 10.0
_MAX_CONNECTIONS = 64
"""Each connection has a thread."""

_PAUSE_S = 0.05
"""After a connection that could not be accepted."""

_POLL_S = 0.1
"""Seconds between two checks for late connections and for :meth:`MetricsServer.close`, which waits for the next one."""

_log = logging.getLogger(__name__)

Reasons: TypeAlias = Callable[[], Iterable[str]]
"""Returns why a process is not healthy; nothing if it is."""


class _LimitedServer(ThreadingHTTPServer):
    """A server with a limit of its connections and of the time for a request's head."""

    request_queue_size = 1024

    def __init__(
        self, address: tuple[str, int], pages: type[BaseHTTPRequestHandler], connections: OpenConnections
    ) -> None:
        self._connections = connections
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, pages)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Without a file for it, it would stay first in the kernel's queue, and so another one
        is closed."""
        try:
            return super().get_request()
        except OSError:
            self._connections.close_oldest()
            time.sleep(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        def close() -> None:
            with contextlib.suppress(OSError):  # its thread has closed it meanwhile
                request.shutdown(socket.SHUT_RDWR)

        self._connections.opened(request, close)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.lost(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called every :data:`_POLL_S`, and before each connection."""
        self._connections.close_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not write tracebacks: the caller has gone, or was closed."""
        _log.debug("a request of %s failed", client_address, exc_info=True)


class MetricsServer:
    """Serves ``/metrics``, ``/health/live`` and ``/health/ready``.

    Args:
        unlive: why the process must be restarted.
        unready: why it does not work now.
        port: 0 takes a free one; see :attr:`port`.
        host: address to listen on. The pages need no login: keep them inside your network.

    Raises:
        SettingsError: the port is in use, or the address is not of this machine.
    """

    def __init__(self, metrics: CollectorRegistry, unlive: Reasons, unready: Reasons, port: int, host: str) -> None:
        self._metrics = metrics
        self._health = {"live": unlive, "ready": unready}
        server = self
        connections = OpenConnections(f"the port {port} of metrics and health", _MAX_CONNECTIONS)

        class Pages(BaseHTTPRequestHandler):
            timeout = _CLIENT_TIMEOUT_S

            def do_GET(self) -> None:
                connections.answering(self.connection)
                try:
                    status, content_type, page = server.page(self.path, self.headers.get("Accept", ""))
                except Exception:
                    _log.exception("the page %s could not be made", self.path.partition("?")[0])
                    status, content_type, page = 500, "text/plain", b"the log of the process has the reason\n"
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(page)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None:
                _log.debug(format, *args)

        host = without_brackets(host)
        try:
            self._server = _LimitedServer((host, port), Pages, connections)
        except OSError as error:
            raise SettingsError(
                f"{in_url(host)}:{port} cannot be listened on ({error.strerror}): choose another"
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=[_POLL_S], name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def page(self, path: str, accept: str) -> tuple[int, str, bytes]:
        """Return status, content type and body of a page."""
        name = path.partition("?")[0]
        if name == "/metrics":
            encode, content_type = encoder(accept)
            return 200, content_type, encode(self._metrics)
        health = name.removeprefix("/health/")
        if name.startswith("/health/") and health in self._health:
            reasons = list(self._health[health]())
            page = json.dumps({health: not reasons, "reasons": reasons}).encode()
            return 503 if reasons else 200, "application/json", page
        return 404, "text/plain", b"there are /metrics, /health/live and /health/ready\n"
