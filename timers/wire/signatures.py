"""Signatures of queries to a worker's web port.

The workers and their operators share a secret. It is never sent: an address found in the consumer group may be that of
a program that only joined the group. A signature is valid for one path with its parameters, and one recipient.
"""

from __future__ import annotations

import hmac
import re

SIGNATURE = "Timers-Signature"
"""Header of a query: ``<epoch second> <signature in hex>``."""

VALID_S = 300
"""A signed query is valid this number of seconds before and after the second in it: clocks of machines differ."""

ANY_WORKER = ""
"""Recipient of a query of a user. A query that one worker forwards to another one names that one's id."""

_FORM = re.compile(r"([0-9]{1,12}) ([0-9a-f]{64})", re.ASCII)


def signed_headers(secret: str, target: str, recipient: str, now_s: float) -> dict[str, str]:
    """Return the headers of a query: the signature, or none without a secret.

    Args:
        target: path and parameters, percent-encoded as they are sent.
        recipient: id of a worker, or :data:`ANY_WORKER`.
    """
    return {SIGNATURE: f"{int(now_s)} {_signature(secret, target, recipient, int(now_s))}"} if secret else {}


def why_refused(secret: str, header: str | None, target: str, recipients: tuple[str, ...], now_s: float) -> str:
    """Return why a query is not answered, in a sentence; empty if its signature is right."""
    if header is None:
        return "the query is not signed: set TIMERS_QUERY_SECRET_FILE to the secret of the workers"
    form = _FORM.fullmatch(header)
    if form is None or not any(
        hmac.compare_digest(form[2], _signature(secret, target, recipient, int(form[1]))) for recipient in recipients
    ):
        return "the query was signed with another secret: set TIMERS_QUERY_SECRET_FILE to the secret of the workers"
    if abs(int(form[1]) - now_s) > VALID_S:
        return f"the query was signed {now_s - int(form[1]):.0f} s ago by this worker's clock: synchronize the clocks"
    return ""


def _signature(secret: str, target: str, recipient: str, second: int) -> str:
    return hmac.new(secret.encode(), "\n".join((str(second), recipient, target)).encode(), "sha256").hexdigest()
