"""Refuses what pages of other sites ask a port for, in a browser that may reach it. Pure.

A port that only this machine reaches is reached by each page that a user of this machine opens, too. A browser does not
let a page read answers of another host. So such a page gives its own name the address of this machine (DNS rebinding).
Then the request has the name of the page's host, which is none of ours.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from timers.core.printable import quoted

LOCALHOST = "localhost"

_OWN_SITE = ("same-origin", "none", None)
"""Values of ``Sec-Fetch-Site`` of a page of the port itself, of what the user has typed or opened, and of programs."""

_SHOWN = 100

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Za-z:.%]+)\]|(?P<name>[0-9A-Za-z._-]+))(?::(?P<port>[0-9]{0,5}))?", re.ASCII)
_MAX_PORT = 65_535


EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""Address that stands for all addresses of a machine -> host of a URL by which the machine reaches itself there."""


def without_brackets(host: str) -> str:
    """Return the address of IPv6 that is in brackets, or else the host as it is."""
    return host[1:-1] if re.fullmatch(r"\[[^\[\]]*:[^\[\]]*\]", host) else host


def in_url(host: str) -> str:
    """Return a host as a URL has it: an address of IPv6 is in brackets, which it may have already."""
    host = without_brackets(host)
    return f"[{host}]" if ":" in host else host


def reached_here(bind: str) -> str:
    """Return the host of a URL by which this machine reaches a server that listens at ``bind``."""
    return EVERYWHERE.get(bind) or in_url(bind)


class Hosts:
    """The hosts for which a port answers: each IP address, ``localhost``, and some names.

    A page cannot choose an IP address as its name, so all of them are allowed.

    Args:
        urls: the port's own URLs; an empty one has no host.
    """

    def __init__(self, urls: Iterable[str], names: Iterable[str]) -> None:
        own = (urlsplit(url).hostname for url in urls)
        self._names = {LOCALHOST, *filter(None, own), *map(str.lower, names)}

    def why_refused(self, headers: Any) -> str:
        """Return why a request with these headers is not answered, in a sentence; empty if its ``Host`` is right."""
        hosts = headers.getall("Host", [])
        host = _hostname(hosts[0]) if len(hosts) == 1 else None
        if host is not None and (host in self._names or _is_address(host)):
            return ""
        return (
            f"this server is not {quoted(', '.join(hosts)[:_SHOWN])}: it answers to IP addresses and to "
            f"{', '.join(sorted(self._names))}. If it has another name, add it to TIMERS_WEB_HOSTS"
        )


def is_own_site(headers: Any) -> bool:
    """Whether a request with these headers comes from no page, or from a page of the port itself."""
    return headers.get("Sec-Fetch-Site") in _OWN_SITE


def why_cross_site(headers: Any) -> str:
    """Return why a request is not answered that a page of another site sends; empty if it is. A link is allowed."""
    return "" if is_own_site(headers) or headers.get("Sec-Fetch-Mode") == "navigate" else CROSS_SITE


CROSS_SITE = "a page of another site sent this request: only pages of this server may"


def _hostname(host: str) -> str | None:
    """The name in a header ``Host``, without the port; None if it has another form."""
    found = _HOST.fullmatch(host)
    if found is None or int(found["port"] or 0) > _MAX_PORT:
        return None
    return (found["v6"] or found["name"]).lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
