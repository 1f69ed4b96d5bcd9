"""Counts round trips of simulated brokers: all answers that are waited for at one time come together."""

import asyncio

SECONDS = 0.05


class RoundTrips:
    """Answers of simulated brokers.

    Attributes:
        count: how many round trips there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._answer: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait for the answers that come next; if none is under way, they come one round trip later."""
        if self._answer is None:
            self.count += 1
            self._answer = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(SECONDS, self._arrive, self._answer)
        await self._answer

    def _arrive(self, answer: asyncio.Future[None]) -> None:
        self._answer = None
        answer.set_result(None)
