"""The queue for programs with an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Self

from timers.errors import LeaseLostError
from timers.queue.inspection import QueueStats
from timers.queue.message import Message, settled_after
from timers.queue.queue import Queue
from timers.queue.sending import Sendable


class AsyncQueue:
    """:class:`Queue` with coroutines; it takes the same arguments. The calls on a message do not block.

    ::

        async with AsyncQueue("orders") as queue:
            async for message in queue.messages():
                message.ack()
    """

    def __init__(self, topic: str | Queue, **arguments: Any) -> None:
        self.queue = topic if isinstance(topic, Queue) else Queue(topic, **arguments)
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, value: Any, **arguments: Any) -> str:
        """As :meth:`Queue.send`."""
        return await asyncio.to_thread(self.queue.send, value, **arguments)

    async def send_many(self, messages: Iterable[Sendable]) -> list[str]:
        """As :meth:`Queue.send_many`."""
        return await asyncio.to_thread(self.queue.send_many, messages)

    async def receive(self, limit: int = 1, wait_s: float = 1.0) -> list[Message]:
        """As :meth:`Queue.receive`. If the task is cancelled, what it would have got is put back."""
        call = asyncio.ensure_future(asyncio.to_thread(self.queue.receive, limit, wait_s))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(_put_back)
            raise

    async def messages(self, limit: int = 100) -> AsyncIterator[Message]:
        """Yield messages until the queue is closed."""
        while not self.queue.closing:
            for message in await self.receive(limit):
                yield message

    async def run(self, handler: Callable[[Message], Awaitable[None]], *, concurrency: int = 1) -> None:
        """As :meth:`Queue.run`, with ``concurrency`` tasks."""
        running = self._running
        with self.queue.handlers.running():
            async with asyncio.TaskGroup() as group:
                while not self.queue.stopping:
                    if len(running) == concurrency:
                        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for message in await self.receive(concurrency - len(running)) if len(running) < concurrency else ():
                        if self.queue.stopping:
                            message.put_back()
                            continue
                        task = group.create_task(_handle(message, handler))
                        running.add(task)
                        task.add_done_callback(running.discard)

    def stop(self) -> None:
        """As :meth:`Queue.stop`."""
        self.queue.stop()

    async def stats(self) -> QueueStats:
        """As :meth:`Queue.stats`."""
        return await asyncio.to_thread(self.queue.stats)

    async def settle(self) -> None:
        """As :meth:`Queue.settle`."""
        await asyncio.to_thread(self.queue.settle)

    async def close(self) -> None:
        """As :meth:`Queue.close`. In a handler it is :meth:`stop`, because a handler cannot wait for itself."""
        self.queue.stop()
        if asyncio.current_task() not in self._running:
            await asyncio.to_thread(self.queue.close)


def _put_back(call: asyncio.Future[list[Message]]) -> None:
    if not call.cancelled() and call.exception() is None:
        for message in call.result():
            message.put_back()


async def _handle(message: Message, handler: Callable[[Message], Awaitable[None]]) -> None:
    with contextlib.suppress(LeaseLostError), settled_after(message):
        await handler(message)
