"""docs/python-client.md: the function with which a service opens its client, and the programs that need no broker."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web

from tests.docs.markdown import ALL_BLOCKS
from timers.client import AsyncTimersClient

BLOCKS = [block.text for block in ALL_BLOCKS if block.page == "docs/python-client.md" and block.language == "python"]


@pytest.mark.filterwarnings("ignore::aiohttp.web_exceptions.NotAppKeyWarning")
async def test_a_service_of_aiohttp_takes_the_function_without_its_decorator() -> None:
    (text,) = (each for each in BLOCKS if "async def lifespan" in each)
    names: dict[str, Any] = {}
    exec(text.replace("@asynccontextmanager\n", "").replace("asyncio.run(main())", ""), names)
    app = web.Application()
    app.cleanup_ctx.append(names["lifespan"])
    runner = web.AppRunner(app)
    await runner.setup()
    assert isinstance(app["timers"], AsyncTimersClient)
    await runner.cleanup()


async def test_the_function_is_an_async_context_manager() -> None:
    """FastAPI and Starlette call it with the application."""
    (text,) = (each for each in BLOCKS if "async def lifespan" in each)
    names: dict[str, Any] = {}
    exec(text.replace("asyncio.run(main())", ""), names)
    app: dict[str, Any] = {}
    lifespan: AbstractAsyncContextManager[None] = names["lifespan"](app)
    async with lifespan:
        assert isinstance(app["timers"], AsyncTimersClient)


@pytest.mark.parametrize("text", [each for each in BLOCKS if "timers.testing" in each])
def test_a_program_with_simulated_timers_runs(text: str) -> None:
    exec(text, {})
