"""docs/python-client.md: the function with which a service opens its client, and the programs that need no broker."""

import re
import tomllib
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web

from tests.docs.markdown import ALL_BLOCKS, ROOT
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


def test_the_page_names_what_is_installed_beside_the_packages_of_the_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {re.split(r"[^\w-]", each)[0] for each in project["dependencies"]}
    of_the_command = {"click", "tqdm", "pyyaml"}
    first, *_ = (ROOT / "docs/python-client.md").read_text().split("| you have")
    assert {name for name in installed if f"`{name}`" in first} == installed - of_the_command
