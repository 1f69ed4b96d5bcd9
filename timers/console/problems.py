"""The errors of the API: answers of type ``application/problem+json`` (RFC 9457) with a code and a sentence."""

from __future__ import annotations

from typing import Any

from timers.wire import dead_letter

PROBLEM_KINDS = {
    "unknown": (504, "the brokers did not answer in time; the change may have happened, or may still happen"),
    "brokers-unreachable": (503, "no broker answers; nothing was changed"),
    "worker-unreachable": (503, "the worker does not answer, or is starting"),
    "issuer-unreachable": (503, "the issuer of logins does not answer; logins of other kinds are not affected"),
    "busy": (503, "too many requests of this kind are being answered"),
    "not-recorded": (503, "the change could not be recorded in the log of changes, so it was not made"),
    "access-refused": (502, "the brokers refuse the console's login, or it lacks a right; nothing was changed"),
    "publish-refused": (502, "the brokers refuse the request; nothing was changed"),
    "ids-off": (501, "timers have no ids: TIMERS_ID_TOPIC is empty"),
    "condition-unsupported": (501, "the condition of the request cannot be judged; nothing was changed"),
    "failed": (500, "an error in the console; its log has more"),
    "rate-limited": (429, "too many requests, or too many failed logins"),
    "address-too-long": (414, "path and query of the request are too long"),
    "body-not-json": (415, "the body is not of type application/json"),
    "body-too-large": (413, "the body is larger than a request may be"),
    "misdirected": (421, "the request names a host that is not this console"),
    "exists": (412, "there is a timer with this id, or there was one a short time ago"),
    "changed": (412, "the ETag in If-Match is not that of the latest version"),
    "method-not-allowed": (405, "this path has other methods"),
    "not-found": (404, "there is no such path, timer, dead letter, topic or queue"),
    "already-fired": (409, "the timer has fired already"),
    "request-deleted": (409, "the request of the timer is no longer in its log; nothing was changed"),
    "conflict": (409, "another request does the same at this time, or a dead letter that was named cannot be retried"),
    "login-missing": (401, "the request has no login, or a wrong one"),
    "cross-site": (403, "a page of another site sent this request"),
    "read-only": (403, "the console only reads: TIMERS_CONSOLE_WRITE is not 1"),
    "role-missing": (403, "the role of this user does not allow this"),
    "topic-forbidden": (403, "this user may not use this topic"),
    "id-forbidden": (403, "this user may not use this id"),
    "values-hidden": (403, "values of callbacks are not shown to this user"),
    "queries-off": (403, "the workers answer no queries of this console about timers"),
    "parameter-invalid": (400, "a parameter is missing, unknown or wrong"),
    "cursor-invalid": (400, "a cursor or a confirmation is wrong, too old, or belongs to another user or filter"),
    "target-refused": (
        422,
        "the callback topic cannot be paused, resumed or created as asked for; nothing was changed",
    ),
    "idempotency-key-reused": (422, "the first request with this Idempotency-Key had another body"),
    "due-invalid": (422, "the due time is missing or wrong"),
    **dict.fromkeys(dead_letter.CODES, (422, "the timer would become a dead letter with this code")),
}
"""Code -> status and meaning."""

_MAX_DETAIL = 2000
"""Characters of a sentence, which may repeat what was sent."""

PROBLEM_CONTENT_TYPE = "application/problem+json"


class Problem(Exception):
    """An answer that says why a request was not carried out; ``more``: further members of its body."""

    def __init__(self, code: str, detail: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail if len(detail) <= _MAX_DETAIL else f"{detail[:_MAX_DETAIL]} ...")
        self.code = code
        self.status = PROBLEM_KINDS[code][0]
        self.headers = headers or {}
        self.more = more

    @property
    def body(self) -> dict[str, Any]:
        """The members of the JSON object."""
        return {**kind(self.code), "detail": str(self), **self.more}


PATH = "/v1/problem"
"""The path at which the console says what a type of problem is."""


def kind(code: str, base_path: str = "") -> dict[str, Any]:
    """What all problems with a code have in common, as RFC 9457 names it.

    ``urn`` is the ``type`` of the version before, for programs that compare it (UPGRADING.md).
    """
    status, meaning = PROBLEM_KINDS[code]
    named = {"type": f"{base_path}{PATH}?code={code}", "title": meaning, "status": status}
    return {**named, "code": code, "urn": f"urn:timers:problem:{code}"}
