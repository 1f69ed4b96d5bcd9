"""The HTTP server of the console: one pipeline of checks for all routes of the table."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from timers.client import timer_lines, tracing
from timers.console import (
    checking,
    event_pages,  # noqa: F401  # this import and those with this mark fill HANDLERS
    letter_pages,  # noqa: F401
    openapi,
    scheduler_api,
    target_pages,  # noqa: F401
    timer_pages,  # noqa: F401
    worker_pages,  # noqa: F401
)
from timers.console.access import Access, Principal, Rates, too_many
from timers.console.call import CONDITION_HEADERS, HANDLERS, Call, ConsoleContext, Handler, Reply, record, whole_body
from timers.console.kafka_cluster import KafkaCluster
from timers.console.problems import PROBLEM_CONTENT_TYPE, PROBLEM_KINDS, Problem, kind
from timers.console.routes import BY_NAME, EVENT_STREAM, JSON, ROUTES, Route
from timers.console.schemas import SCHEMAS
from timers.console.signer import Signer
from timers.console.web.site import Site
from timers.core.printable import quoted
from timers.errors import AccessError, InvalidTimerError, SettingsError, TimersError
from timers.process.config.settings import Settings
from timers.process.hosts import reached_here
from timers.process.http.open_connections import OpenConnections
from timers.process.http.web_site import limited
from timers.process.renewed_tls import RenewedContext
from timers.wire.headers import TRACE_HEADERS
from timers.wire.query import given_in

logger = logging.getLogger(__name__)

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_BURST_S = 2
"""A user may send the requests of this number of seconds at once."""

_ROOM_BYTES = 256 * 1024
"""For the other fields of a body than the value."""

_ADDRESS_BYTES = 16 * 1024
"""Path and query of a request; the longest cursor, with each byte escaped, takes 6,000."""

LINE_LIMITS: Mapping[str, Any] = dict.fromkeys(("max_line_size", "max_field_size"), 4 * _ADDRESS_BYTES)
"""The HTTP parser answers a longer line itself, and not as the API does. A header may be as long, because cookies of
other programs on this host come with each request."""

_READING = ("GET", "HEAD")
"""Where GET is answered, HEAD is too; aiohttp sends no body to it."""

_EACH_HOST = frozenset({"live", "ready", "metrics"})
"""Routes for probes, which ask by any name of the machine. They show nothing of a timer."""

_LOOK_S = 0.5
"""Time between two looks whether the client of a request still waits."""

_CLIENT_GONE = 499

READY_S = 2.0
"""How long the result of a check of brokers and worker is shown."""

_UNAVAILABLE, _NO_CONTENT = 503, 204

REQUEST_ID = "Request-Id"
"""A header of each answer, and of each request that has an id of its own."""

_LEGAL_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)

_Next = Callable[[web.Request], Awaitable[web.StreamResponse]]


_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Server:
    """The application of one console. Wrong files, and settings that would let all users in, are a SettingsError."""

    def __init__(self, settings: Settings, cluster: KafkaCluster) -> None:
        self._settings = settings
        self._base_path = base_path(settings)
        self._max_body_bytes = settings.max_request_bytes * 4 // 3 + _ROOM_BYTES
        signer = Signer(settings)
        self._access = Access(settings, signer)
        self._console = ConsoleContext(settings, cluster, self._access, signer)
        per_s = settings.console_rate_per_s
        self._rates = Rates(per_s, max(1, per_s * _BURST_S))
        self.metrics = registry = CollectorRegistry()
        # By route, and never by user, id or topic, of which there is no limit.
        labels = "route", "status"
        self._requests = Counter("timers_console_requests", "Requests answered.", labels, registry=registry)
        durations = "timers_console_request_seconds", "Durations of answers."
        self._seconds = Histogram(*durations, labels[:1], registry=registry)
        self.connections = OpenConnections("the console")
        self._checking = asyncio.Lock()
        self._readiness: tuple[float, tuple[list[str], list[str]]] | None = None
        self._handlers: dict[str, Handler] = {
            **HANDLERS,
            "live": self._live,
            "ready": self._ready,
            "openApi": self._open_api,
            "problem": self._problem_kind,
            "metrics": self._show_metrics,
        }
        self._site = Site(settings, self._base_path, self._access, self.perform)

    def runner(self) -> web.AppRunner:
        """What serves the application."""
        return web.AppRunner(
            self.application(),
            access_log=None,
            shutdown_timeout=2.0,
            **LINE_LIMITS,
        )

    def application(self) -> web.Application:
        """The application of aiohttp, with all routes."""
        application = web.Application(client_max_size=self._max_body_bytes, middlewares=[self._answer_errors])
        foreign = scheduler_api.ROUTES if self._settings.console_scheduler_api else ()
        own = ((route, self._handlers[route.name]) for route in ROUTES)
        for route, handler in (*own, *foreign, *self._site.routes()):
            endpoint = self._endpoint(route, handler)
            for method in _READING if _may_be_given_up(route) else (route.method,):
                application.router.add_route(method, self._base_path + route.path, endpoint)
        return limited(application, self.connections)

    def _endpoint(self, route: Route, handler: Handler) -> _Next:
        async def answer(request: web.Request) -> web.StreamResponse:
            begun = monotonic()
            status = 500
            try:
                response = await self._checked(route, handler, request)
                status = response.status
                return response
            except Problem as problem:
                status = problem.status
                raise
            finally:
                self._requests.labels(route.name, str(status)).inc()
                self._seconds.labels(route.name).observe(monotonic() - begun)

        return answer

    async def _checked(self, route: Route, handler: Handler, request: web.Request) -> web.StreamResponse:
        """Answer a request. The order counts: nothing is read or done for a user who may not ask for it."""
        if route.name not in _EACH_HOST:
            self._access.check_site(request)
        if request.method not in _READING:
            self._access.check_origin(request)
        user = await self._access.principal(request) if route.role else self._access.public
        if route.role:
            now_s = monotonic()
            if wait_s := self._rates.wait_s(user.name, now_s):
                raise too_many(wait_s, f"more than {self._settings.console_rate_per_s} requests a second")
            self._rates.take(user.name, now_s)
        self._check_role(route, request, user)
        parameters = {} if route.is_foreign else checking.parameters(route, given_in(request.raw_path))
        body, address = await _body(route, request), self._access.client_address(request)
        call = Call(self._console, request, route, user, parameters, body, self._base_path, address)
        carried_out = _carry_out(call, handler)
        said = {name: ",".join(request.headers.getall(name, ())) for name in TRACE_HEADERS}
        with tracing.given(tracing.said(said)):  # for the timers that it sets
            reply = await (_while_connected(request, carried_out) if _may_be_given_up(route) else carried_out)
        if not isinstance(reply, Reply):
            return reply
        response = _response(reply)
        following = reply.body.get("next") if isinstance(reply.body, Mapping) else None
        if isinstance(following, str) and route.method == "GET":
            query = request.rel_url.update_query(cursor=following).raw_query_string
            response.headers["Link"] = f'<?{query}>; rel="next"'
        return response

    async def perform(
        self, page: Call, name: str, parameters: Iterable[tuple[str, str]] = (), body: Mapping[str, Any] | None = None
    ) -> Any:
        """The JSON with which a route of the API answers, for the user of a page and with the same checks."""
        route = BY_NAME[name]
        self._check_role(route, page.request, page.user)
        given = checking.parameters(route, parameters)
        body = {} if body is None else body
        _check_body(route, body)
        call = replace(page, route=route, parameters=given, body=body)
        reply = await _carry_out(call, self._handlers[name])
        assert isinstance(reply, Reply), "pages ask for no streams"
        return reply.body

    async def _live(self, call: Call) -> Reply:
        return Reply({"live": True})

    async def _ready(self, call: Call) -> Reply:
        async with self._checking:  # anyone may ask, so the brokers are asked once in two seconds
            if self._readiness is None or monotonic() > self._readiness[0] + READY_S:
                problems = await self._console.cluster.problems()  # this may take longer than the result is shown
                self._readiness = monotonic(), problems
        brokers, worker = self._readiness[1]
        # Without a worker the pages say what is wrong, and timers can be set: a service must not leave it out.
        return Reply({"ready": not brokers, "reasons": brokers + worker}, _UNAVAILABLE if brokers else 200)

    async def _open_api(self, call: Call) -> Reply:
        return Reply(openapi.document(self._base_path))

    async def _problem_kind(self, call: Call) -> Reply:
        code = call.parameters["code"]
        if code not in PROBLEM_KINDS:
            raise Problem("not-found", f"no problem has the code {quoted(code)}")
        return Reply(kind(code, self._base_path))

    async def _show_metrics(self, call: Call) -> Reply:
        return Reply(generate_latest(self.metrics), headers={"Content-Type": _METRICS_TYPE})

    def _check_role(self, route: Route, request: web.Request, user: Principal) -> None:
        if route.writes and not self._settings.console_write:
            raise Problem("read-only", "this console only reads: start it with TIMERS_CONSOLE_WRITE=1")
        known = {each.name for each in route.headers}
        for name in CONDITION_HEADERS if route.writes else ():
            if name in request.headers and name not in known:
                able = ", ".join(sorted(known)) or "no conditions"
                raise Problem("condition-unsupported", f"{route.method} {route.path} takes {able}, and not {name}")
        if not user.may(route.role):
            raise Problem("role-missing", f"{route.name} needs the role {route.role}, and you have {user.role}")

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: _Next) -> web.StreamResponse:
        given = request.headers.get(REQUEST_ID, "")
        id = given if _LEGAL_ID.fullmatch(given) else secrets.token_hex(8)
        try:
            if len(request.raw_path) > _ADDRESS_BYTES:
                raise Problem("address-too-long", f"path and query have more than {_ADDRESS_BYTES} bytes")
            response = await handler(request)
        except Problem as problem:
            response = self._problem(request, problem, id)
        except web.HTTPRequestEntityTooLarge:
            why = (
                f"the body has more than {self._max_body_bytes} bytes: 4/3 of TIMERS_MAX_REQUEST_BYTES, because base64 "
                f"is longer than the value, and {_ROOM_BYTES} bytes for the rest. Send a reference instead of the data"
            )
            response = self._problem(request, Problem("body-too-large", why), id)
        except web.HTTPMethodNotAllowed as error:
            methods = ", ".join(sorted({*error.allowed_methods, "OPTIONS"}))
            if request.method == "OPTIONS":
                response = web.Response(status=_NO_CONTENT, headers={"Allow": methods})
                return self._finished(response, id)
            why = f"{request.method} is not a method of this path: there is {methods}"
            response = self._problem(request, Problem("method-not-allowed", why, {"Allow": methods}), id)
        except web.HTTPNotFound:
            response = self._problem(request, Problem("not-found", f"there is no path {quoted(request.path)}"), id)
        except (web.HTTPException, asyncio.CancelledError):
            raise
        except Exception:
            logger.exception("%s %s failed (request %s)", request.method, request.path, id)
            response = self._problem(
                request, Problem("failed", "the console could not answer; its log has the reason"), id
            )
        return self._finished(response, id)

    @staticmethod
    def _finished(response: web.StreamResponse, id: str) -> web.StreamResponse:
        """The answer with the headers of all answers."""
        if not response.prepared:
            for name, value in {**_HEADERS, REQUEST_ID: id}.items():
                response.headers.setdefault(name, value)
        return response

    def _problem(self, request: web.Request, problem: Problem, id: str) -> web.Response:
        if self._site.is_for_people(request):
            return _response(self._site.problem(request, problem))
        return web.Response(
            text=f"{json.dumps({**problem.body, **kind(problem.code, self._base_path), 'request_id': id})}\n",
            status=problem.status,
            headers=problem.headers,
            content_type=PROBLEM_CONTENT_TYPE,
        )


async def _body(route: Route, request: web.Request) -> Mapping[str, Any]:
    if not route.body:
        return {}
    # A page of another site can send a form or text without asking the browser first, but not JSON.
    if request.content_type != JSON:
        raise Problem("body-not-json", f"the body is of type {request.content_type}: send Content-Type: {JSON}")
    try:
        body = timer_lines.parse_object(await whole_body(request))
    except InvalidTimerError as error:
        raise Problem("parameter-invalid", str(error)) from None
    _check_body(route, body)
    return body


def _check_body(route: Route, body: Mapping[str, Any]) -> None:
    if route.body and not SCHEMAS[route.body].get("x-timers-own-checks"):
        checking.check(SCHEMAS[route.body], body, "the body")


async def _carry_out(call: Call, handler: Handler) -> Reply | web.StreamResponse:
    if call.route.writes:
        await record(call)
    try:
        return await handler(call)
    except AccessError as error:
        raise Problem("access-refused", str(error)) from None
    except TimersError as error:  # handlers explain the others
        raise Problem("brokers-unreachable", str(error)) from None


def _may_be_given_up(route: Route) -> bool:
    """Whether an answer has no effect. A stream looks itself whether its client has gone."""
    return route.method in _READING and all(each.content != EVENT_STREAM for each in route.answers)


async def _while_connected(
    request: web.Request, answer: Coroutine[Any, Any, Reply | web.StreamResponse]
) -> Reply | web.StreamResponse:
    """The answer, which is given up soon after its client has gone: it may hold one of a few readers."""
    task = asyncio.create_task(answer)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_S)
            if request.transport is None and not task.done():
                return web.Response(status=_CLIENT_GONE)  # it is not read
    finally:
        task.cancel()
        await asyncio.wait({task})
    return task.result()


def _response(reply: Reply) -> web.Response:
    if isinstance(reply.body, bytes):
        return web.Response(body=reply.body, status=reply.status, headers=reply.headers)
    text = json.dumps(reply.body, ensure_ascii=True, separators=(",", ":")) + "\n"  # a terminal shows it as a line
    return web.Response(text=text, status=reply.status, headers=reply.headers, content_type=JSON)


def base_path(settings: Settings) -> str:
    """The path of ``TIMERS_CONSOLE_URL``; empty if it has none."""
    return urlsplit(settings.console_url).path


def local_url(settings: Settings) -> str:
    """The URL under which this machine reaches the console."""
    scheme = "https" if settings.console_cert_file else "http"
    return f"{scheme}://{reached_here(settings.console_bind)}:{settings.console_port}{base_path(settings)}"


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The server's certificate and the authorities of its clients; None: the console speaks HTTP."""
    if settings.console_cert_file is None:
        return None
    files = settings.console_cert_file, settings.console_key_file, settings.console_client_ca_file
    try:
        return RenewedContext.reading(ssl.PROTOCOL_TLS_SERVER, files, partial(_load, settings))
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(
            "TIMERS_CONSOLE_CERT_FILE, TIMERS_CONSOLE_KEY_FILE and TIMERS_CONSOLE_CLIENT_CA_FILE cannot be used: "
            f"they are PEM files, the key without a password ({error})"
        ) from None


def _load(settings: Settings, context: ssl.SSLContext) -> None:
    assert settings.console_cert_file is not None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.console_cert_file, settings.console_key_file, lambda: "")
    if settings.console_client_ca_file is not None:
        context.load_verify_locations(settings.console_client_ca_file)
        context.verify_mode = ssl.CERT_OPTIONAL
