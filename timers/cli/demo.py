"""``timers demo``: schedules timers and shows them fire."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from timers.cli.output import Output, output_option, say
from timers.cli.reach import load_settings
from timers.config.settings import Settings
from timers.errors import UnacknowledgedError, UnreachableError
from timers.wire import headers, topics
from timers.wire.printable import quoted

if TYPE_CHECKING:
    from timers.client import TimersClient
    from timers.kafka.topic_reader import TopicReader

TOPIC = "timers-demo"
_FIRST_TIMERS = 20
_FIRST_SPAN_S = 10
_RUN = "demo-run"
"""Header with an id of this run: it distinguishes the timers of this demo from those of earlier demos."""
_HINT_AFTER_S = 15.0
_POLL_S = 0.5
_PROBE = "ready?"


@click.command()
@click.option("--topic", "-t", default=TOPIC, show_default=True, help="Where the callbacks go; created when missing.")
@output_option()
def demo(topic: str, output: Output) -> None:
    """Schedule timers and show each one fire: 20 over the first 10 s, then one a second until Ctrl-C.

    Needs a broker and a worker that runs (`timers run` starts both). Each callback is one line on standard output:
    fired topic=T key=K due=S lag_ms=N.
    """
    if not topics.is_legal(topic):
        raise click.BadParameter(f"{quoted(topic)} is not {topics.LEGAL_FORM}", param_hint="--topic")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT by default
    run_demo(load_settings(), topic, output)


def run_demo(
    settings: Settings,
    topic: str,
    output: Output,
    check_worker: Callable[[], None] = lambda: None,
    when_firing: Callable[[], None] = lambda: None,
    how_to_start: str = "start a worker in another terminal with `timers worker`",
) -> None:
    """Run the demo until it is interrupted.

    Args:
        check_worker: called several times a second; raises to end the demo.
        when_firing: called once, when a worker fires.
        how_to_start: what to do while no worker fires.
    """
    from timers.client import TimersClient
    from timers.kafka import topic_admin  # not at the top: `--help` needs no librdkafka
    from timers.kafka.topic_reader import TopicReader

    topic_admin.create_if_missing(settings, topic, partitions=1)
    with TopicReader(settings, topic) as reader, TimersClient(settings.brokers, timeout_s=10) as client:
        _until(reader.assign_partitions, check_worker, f"waiting for topic {topic!r} to appear ...")
        request_topic = settings.request_topic
        _until(
            lambda: topic_admin.exists(settings, request_topic),
            check_worker,
            f"topic {request_topic!r} does not exist yet, which a worker creates: {how_to_start}. Waiting ...",
        )
        running = _Demo(client, reader, topic, output, check_worker)
        running.wait_for_worker(how_to_start)
        when_firing()
        running.run()


def _until(done: Callable[[], bool], check_worker: Callable[[], None], hint: str) -> None:
    """Wait until ``done``, and print the hint after 15 s."""
    hint_at = time.monotonic() + _HINT_AFTER_S
    while not done():
        check_worker()
        if time.monotonic() > hint_at:
            say(hint)
            hint_at = float("inf")
        time.sleep(_POLL_S)


class _Demo:
    """The demo, once broker and topics exist."""

    def __init__(
        self, client: TimersClient, reader: TopicReader, topic: str, output: Output, check_worker: Callable[[], None]
    ) -> None:
        self._client = client
        self._topic = topic
        self._output = output
        self._check_worker = check_worker
        self._run = secrets.token_hex(4)
        self._messages = iter(reader)
        self._scheduled = 0
        self._older = 0

    def wait_for_worker(self, how_to_start: str) -> None:
        """Wait for the callback of a timer that is due already: so the lags do not include the worker's start."""
        begun = time.monotonic()
        while not self._schedule(_PROBE, b"", int(time.time())):
            self._check_worker()
        hint_at = begun + _HINT_AFTER_S
        for key in self._own_callbacks():
            if key == _PROBE:
                break
            if time.monotonic() > hint_at:
                say(f"no callback for {_HINT_AFTER_S:.0f} s: {how_to_start}. Waiting ...")
                hint_at = float("inf")
        say("a worker fires timers")

    def run(self) -> None:
        from timers.client import TimerRequest

        start_s = int(time.time()) + 1
        each_second = _FIRST_TIMERS // _FIRST_SPAN_S
        first = [
            TimerRequest(self._topic, self._next_key(), "hello, later", at=start_s + number // each_second)
            for number in range(_FIRST_TIMERS)
        ]
        self._client.schedule_many([request._replace(headers=self._headers()) for request in first], ids=False)
        say(f"{_FIRST_TIMERS} timers are scheduled for the next {_FIRST_SPAN_S} s, then one a second; Ctrl-C ends this")
        next_s = start_s + _FIRST_SPAN_S
        for _ in self._own_callbacks(show=True):
            if time.time() >= next_s - 1:  # one second before it is due
                self._schedule(self._next_key(), "hello, later", next_s)
                next_s = max(next_s + 1, int(time.time()) + 1)

    def _schedule(self, key: str, value: str | bytes, at: int) -> bool:
        """Schedule a timer; False if the brokers do not answer, which this command survives as workers do."""
        try:
            self._client.schedule(self._topic, key, value, at=at, headers=self._headers())
        except (UnreachableError, UnacknowledgedError) as error:
            say(f"{error}. Going on ...")
            return False
        return True

    def _own_callbacks(self, *, show: bool = False) -> Iterator[str | None]:
        """Keys of this run's callbacks as they arrive; None if none has arrived for 0.1 s."""
        from timers.client.fired import CallbackRecord

        for message in self._messages:
            self._check_worker()
            if message is None:
                yield None
                continue
            record = CallbackRecord.of(message)
            if headers.last(record.headers, _RUN) == self._run.encode():
                if show:
                    self._output.show(record.fields(), record.line(), fg="green")
                yield (record.key or b"").decode()
            else:
                self._note_older()

    def _note_older(self) -> None:
        self._older += 1
        if self._older == 1:
            say("timers of an earlier demo arrive as well: they were pending, and nothing is lost")

    def _headers(self) -> dict[str, str]:
        return {_RUN: self._run}

    def _next_key(self) -> str:
        self._scheduled += 1
        return f"demo-{self._scheduled}"
