"""Sends queries about timers to a worker's web port."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

from timers.core.printable import decode_json
from timers.errors import QueryError
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.wire.query import MAX_ANSWER_BYTES
from timers.wire.signatures import ANY_WORKER, signed_headers

TIMEOUT_S = 60.0
"""Longer than a worker waits for other workers."""


class ForeignWorkerError(QueryError):
    """The worker that answers is one of another app or cluster."""


class Body(Protocol):
    """The content of an answer of aiohttp."""

    async def read(self, n: int) -> bytes:
        """Up to ``n`` bytes that have come; none at the end."""


async def read_answer(body: Body) -> bytes:
    """The whole content of an answer, in memory.

    Raises:
        ValueError: it is longer than a worker's answer can be. The rest is not read.
    """
    content = bytearray()
    while more := await body.read(MAX_ANSWER_BYTES + 1 - len(content)):
        content += more
        if len(content) > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)


def ask(
    settings: Settings,
    path: str,
    parameters: Mapping[str, str],
    cluster_id: str | None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """The worker's answer, which may have no timers.

    Args:
        cluster_id: of the brokers of ``settings``; None: a worker of any app and cluster may answer.

    Raises:
        QueryError: no worker answers, it refuses, or it is one of another app or cluster.
    """
    target = f"{path}?{urlencode(parameters, errors='surrogateescape')}"
    clock = Clock(settings.clock_offset_s)
    signature = signed_headers(settings.query_secret.reveal(), target, ANY_WORKER, clock.now_s())
    request = urllib.request.Request(f"{settings.query_url}{target}", headers=signature)
    # No proxy: the worker is in the same network, and the environment's proxy is for other networks.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            with opener.open(request, timeout=timeout_s) as response:
                return decode_answer(settings, response.read(MAX_ANSWER_BYTES + 1), cluster_id)
        except urllib.error.HTTPError as error:
            answer = decode_answer(settings, error.read(MAX_ANSWER_BYTES + 1), cluster_id)
            if error.code == 404 and "timers" in answer:
                return answer
            raise QueryError(f"the worker at {settings.query_url} says: {_sentence(answer)}") from None
    except (OSError, http.client.HTTPException) as error:  # urllib's own error is an OSError
        why = getattr(error, "reason", None) or error
        raise QueryError(
            f"no worker answers at {settings.query_url} ({why}): start one there, or set TIMERS_WORKER_URL to where "
            "one of this app does (its TIMERS_WEB_BIND and TIMERS_WEB_PORT)"
        ) from None


def worker_zone_data(settings: Settings, timeout_s: float) -> str | None:
    """The version of the zone data of the worker that is asked; None if it does not answer, or does not say it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{settings.query_url}/health/live", timeout=timeout_s) as response:
            live = decode_json(response.read(MAX_ANSWER_BYTES + 1))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    version = live.get("zone_data") if isinstance(live, dict) else None
    return version if isinstance(version, str) else None


def _sentence(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"])
    return f"no worker answers for {missing(answer)}"


def missing(answer: Mapping[str, Any]) -> str:
    """The partitions missing in an answer, with reasons, as text."""
    by_reason: dict[str, list[str]] = {}
    for each in answer["missing"]:
        by_reason.setdefault(each["reason"], []).append(each["partition"])
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())


def decode_answer(settings: Settings, body: bytes, cluster_id: str | None) -> dict[str, Any]:
    """An answer of a worker: an error, or a list of timers with the partitions that are missing.

    Args:
        cluster_id: as of :func:`ask`.

    Raises:
        ForeignWorkerError: it comes from a worker of another app or cluster.
        QueryError: it is something else.
    """
    try:
        answer = decode_json(body) if len(body) <= MAX_ANSWER_BYTES else None
    except ValueError:
        answer = None
    if isinstance(answer, dict) and (
        "error" in answer or (isinstance(answer.get("timers"), list) and isinstance(answer.get("missing"), list))
    ):
        if cluster_id is not None and "error" not in answer:
            check_origin(settings, settings.query_url, answer, cluster_id)
        return answer
    raise QueryError(
        f"what answers at {settings.query_url} is no worker of timers, or an older one: set TIMERS_WORKER_URL"
    )


def check_origin(settings: Settings, url: str, answer: Mapping[str, Any], cluster_id: str) -> None:
    """Check that the answer of the worker at ``url`` comes from one of the app and the cluster of ``settings``: nothing
    else tells it, since each cluster may have a worker on the same port.

    Raises:
        ForeignWorkerError: it does not.
    """
    app, cluster = answer.get("app"), answer.get("cluster")
    if (app, cluster) == (settings.app_id, cluster_id):
        return
    if app is None or cluster is None:
        raise ForeignWorkerError(
            f"the worker at {url} does not say which app and cluster it is of: it is an older one. "
            "Replace it with one of this version"
        )
    raise ForeignWorkerError(
        f"the worker at {url} is of app {app!r} and cluster {cluster}, and not of app "
        f"{settings.app_id!r} and cluster {cluster_id}, which is at {settings.brokers}: set TIMERS_WORKER_URL to a "
        "worker of this app and cluster, or TIMERS_BROKERS and TIMERS_APP_ID to those of the worker"
    )
