"""What the HTTP server of the console does before a route is found."""

from __future__ import annotations

from aiohttp import ClientSession, web
from aiohttp.test_utils import unused_port

from tests.harness.sim_console import SimCluster
from timers.config.settings import Settings
from timers.console.server import Server


async def test_an_address_that_is_too_long_gets_an_answer_of_the_api() -> None:
    """The HTTP parser alone would refuse lines from 8,190 bytes on, as text."""
    runner = Server(Settings.load({"TIMERS_BROKERS": "nowhere:1"}), SimCluster()).runner()
    await runner.setup()
    port = unused_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        async with ClientSession() as session:
            async with session.get(f"http://localhost:{port}/v1/timers?prefix={'a' * 20_000}") as response:
                assert (response.status, (await response.json())["code"]) == (414, "address-too-long")
            async with session.get(f"http://localhost:{port}/v1/timers?cursor={'%41' * 2000}") as response:
                assert (response.status, (await response.json())["code"]) == (400, "cursor-invalid")
    finally:
        await runner.cleanup()
