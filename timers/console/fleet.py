"""Finds the workers of the app in its consumer group, and decides which of them the console may ask.

Who may join the group chooses the address that is found there. So a console sends requests only to addresses that its
operator trusts: those of this machine, that of ``TIMERS_WORKER_URL``, and ``TIMERS_CONSOLE_WORKERS``.
"""

from __future__ import annotations

import ipaddress

from yarl import URL

from timers.config.settings import Settings
from timers.console.cluster import FoundWorker
from timers.errors import QueryError


def find(settings: Settings) -> list[FoundWorker]:
    """The members of the group. Blocks.

    Raises:
        QueryError: the group's coordinator does not answer.
    """
    from aiokafka.errors import KafkaError

    from timers.kafka.aiokafka_internals import group, group_access

    try:
        members = group_access.describe(settings).members
    except KafkaError as error:
        raise QueryError(f"the members of group {settings.app_id!r} cannot be read ({error!r})") from None
    found = []
    for member in members:
        sent = group.user_data(member)
        url = sent.get("url") if isinstance(sent, dict) else None
        url = url if isinstance(url, str) else ""
        found.append(FoundWorker(member[1], url, group.assigned_partitions(member), may_be_asked(settings, url)))
    return found


def may_be_asked(settings: Settings, url: str) -> bool:
    """Whether the console may send requests to this address."""
    try:
        address = URL(url)  # judged with the parser by which it is asked
    except ValueError:
        return False
    host = address.raw_host
    if address.scheme not in ("http", "https") or not host or address.raw_user or address.raw_password:
        return False
    if address.raw_path.strip("/") or address.raw_query_string or address.raw_fragment:
        return False
    if host == URL(settings.query_url).raw_host:
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    networks = map(ipaddress.ip_network, settings.console_workers)
    return ip.is_loopback or any(ip in network for network in networks)
