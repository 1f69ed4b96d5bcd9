"""``timers console``: runs the HTTP API."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from typing import TYPE_CHECKING

import click

from timers.cli.lazy import require
from timers.cli.output import Output, say
from timers.cli.reach import say_brokers
from timers.config.settings import Settings
from timers.errors import SettingsError

if TYPE_CHECKING:
    import ssl

    from timers.console.server import Server

_TOKEN_BYTES = 32


@click.command()
@click.option("--hash-password", is_flag=True, help="Read a password, and print its hash for the file of users.")
@click.option("--new-token", is_flag=True, help="Print a new bearer token, and its hash for the file of users.")
def console(hash_password: bool, new_token: bool) -> None:
    """Run the console: an HTTP API, with pages for a browser, to set, find, change and watch timers.

    It keeps no state. It asks the brokers at TIMERS_BROKERS and the worker at TIMERS_WORKER_URL. By default it only
    reads, and only this machine reaches it: docs/http-api.md says who may do what.

    \b
      TIMERS_CONSOLE_WRITE=1 timers console
      curl http://127.0.0.1:6067/v1/timers
    """
    require("console")
    if hash_password or new_token:
        _print_hash(new_token)
        return
    settings = Settings.load()
    say_brokers(settings)

    from timers.console.access import check_settings
    from timers.console.server import address

    check_settings(settings)
    asyncio.run(_serve(settings, address(settings)))


def _print_hash(new_token: bool) -> None:
    from timers.console import users

    if new_token:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        say(f"token: {token}")
        Output().show({}, f'token_sha256 = "{users.hash_token(token)}"')
        return
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.UsageError("the password is empty")
    Output().show({}, f'password = "{users.hash_password(password)}"')


async def _serve(settings: Settings, url: str) -> None:
    from timers.console.kafka_cluster import KafkaCluster
    from timers.console.server import Server, tls_context

    cluster = KafkaCluster(settings)
    try:
        await _run(Server(settings, cluster), settings, tls_context(settings), url)
    finally:
        await cluster.close()


async def _run(server: Server, settings: Settings, tls: ssl.SSLContext | None, url: str) -> None:
    from timers.web_site import LimitedSite

    runner = server.runner()
    await runner.setup()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        site = LimitedSite(runner, settings.console_bind, settings.console_port, server.connections, tls)
        try:
            await site.start()
        except OSError as error:
            raise SettingsError(
                f"the console cannot listen at TIMERS_CONSOLE_BIND={settings.console_bind} "
                f"TIMERS_CONSOLE_PORT={settings.console_port} ({error.strerror}): choose another port"
            ) from None
        writing = "reads and writes" if settings.console_write else "only reads"
        say(f"console: {url} ({writing})")
        await ended.wait()
    finally:
        await runner.cleanup()
