"""The pauses of services that look at something regularly."""

from collections.abc import AsyncIterator

from mode import Service


async def every(seconds: float, service: Service) -> AsyncIterator[None]:
    """Yields after each pause of ``seconds``, until the service is told to stop, which also ends the pause."""
    while not service.should_stop:
        await service.sleep(seconds)
        if not service.should_stop:  # mode cancels the task, too, but ``sleep`` may swallow the cancel
            yield
