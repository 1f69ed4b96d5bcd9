"""Declares the settings of the console, ``timers console``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from timers.config import variables
from timers.config.variables import number_setting, setting

_HEADER = variables.matching_text(re.compile(r"[A-Za-z0-9-]{1,100}"), "the name of an HTTP header")


@dataclass(frozen=True)
class ConsoleDeclarations:
    """One field for each setting of the console."""

    console_bind: str = setting(
        variables.bind,
        "Address that the console binds to. The default accepts connections from this machine only. With another "
        "address the console starts only with TIMERS_CONSOLE_USERS_FILE, TIMERS_CONSOLE_URL, and either "
        "TIMERS_CONSOLE_CERT_FILE or TIMERS_CONSOLE_PROXIES.",
        default="127.0.0.1",
    )
    console_port: int = number_setting(
        (1, 65535),
        "Port of the console. Several consoles on one machine need different ports.",
        default=6067,
        unit="port",
    )
    console_url: str = setting(
        variables.public_url,
        "URL by which users reach the console, with its path if a proxy gives it one. Requests for another host, and "
        "changes that come from pages of another origin, are refused. Unset: names of this machine only, such as "
        "localhost.",
        default="",
        unit="URL",
    )
    console_write: bool = setting(
        variables.flag,
        "1: users with the role operator may set, change and cancel timers and retry dead letters. 0: the console "
        "only reads.",
        default=False,
    )
    console_users_file: Path | None = setting(
        variables.file,
        "TOML file of the users who may log in. It is read again when it changes. Unset: there is no login. Each user "
        "of this machine may read, and with TIMERS_CONSOLE_WRITE=1 also write.",
    )
    console_cert_file: Path | None = setting(
        variables.file, "PEM certificate of the console, with its chain, for HTTPS. Unset: the console speaks HTTP."
    )
    console_key_file: Path | None = setting(variables.file, "PEM private key of TIMERS_CONSOLE_CERT_FILE.")
    console_client_ca_file: Path | None = setting(
        variables.file,
        "PEM certificates of the authorities whose client certificates are a login. Needs TIMERS_CONSOLE_CERT_FILE.",
    )
    console_proxies: tuple[str, ...] = setting(
        variables.networks,
        "Addresses or networks of the proxies whose header TIMERS_CONSOLE_PROXY_HEADER is a login. The proxy must "
        "remove this header from the requests of its clients, and append the address of its client to X-Forwarded-For.",
        default=(),
        unit="address or network,...",
    )
    console_proxy_header: str = setting(
        _HEADER, "Header in which a proxy of TIMERS_CONSOLE_PROXIES names the user.", default="X-Forwarded-User"
    )
    console_rate_per_s: int = number_setting(
        (1, 1_000_000),
        "Requests a second that the console answers for one user. Above it, the answer is 429 with Retry-After.",
        default=100,
        unit="requests/s",
    )
    console_scheduler_api: bool = setting(
        variables.flag,
        "1: the console also has the paths of kafka-message-scheduler and of its admin, for programs that read them.",
        default=False,
    )
    console_workers: tuple[str, ...] = setting(
        variables.networks,
        "Addresses or networks of workers that the console may ask for health and metrics. It finds the workers in the "
        "consumer group of the app, which other clients of the brokers may join with any address. This machine and "
        "TIMERS_WORKER_URL are always allowed.",
        default=(),
        unit="address or network,...",
    )
    console_secret_file: Path | None = setting(
        variables.file,
        "File with a secret of 32 bytes or more. It signs cursors and confirmations, so give all consoles of an app "
        "the same one. Unset: each process has its own, and forgets it when it ends.",
    )
