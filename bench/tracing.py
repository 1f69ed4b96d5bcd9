"""``python -m bench.tracing``: what a trace context costs a sender, a receiver and a worker, in µs for each timer.

Each figure is the least of some repetitions, which take a second each. ``added`` is what a context adds to the encoding
of a request, which is all that a sender's call does more. There is no broker: none of this waits.
"""

import json
import sys
import timeit
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

from timers.client import TimerRequest, tracing
from timers.client.request import Encoder
from timers.kafka.request_formats import NATIVE
from timers.wire.formats import RequestRecord

REPETITIONS = 5
REQUEST = TimerRequest("orders", "order-17", b"x" * 100, at=1_900_000_000)
TRACEPARENT = f"00-{7:032x}-{9:016x}-01".encode()


def least_us(call: Callable[[], object]) -> float:
    """Least time of a call in µs."""
    timer = timeit.Timer(call)
    count, taken_s = timer.autorange()
    best_s = min(timer.repeat(REPETITIONS, max(1, int(count / taken_s))))
    return best_s / max(1, int(count / taken_s)) * 1e6


def single() -> object:
    return Encoder(1_000_000, context=tracing.current)(REQUEST)


def main() -> None:
    plain_us = least_us(lambda: Encoder(1_000_000)(REQUEST))
    found = {"plain": plain_us, "added without OpenTelemetry": least_us(single) - plain_us}
    assert "opentelemetry" not in sys.modules

    from opentelemetry import baggage, context, trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())
    tracer = trace.get_tracer("bench")
    found["added without a span"] = least_us(single) - plain_us
    with tracer.start_as_current_span("order"), ExitStack() as stack:
        found["added with a span"] = least_us(single) - plain_us
        encode = Encoder(1_000_000, context=tracing.Current())
        encode_plain = Encoder(1_000_000)
        many_us, plain_many_us = least_us(lambda: encode(REQUEST)), least_us(lambda: encode_plain(REQUEST))
        found["added with a span, of schedule_many"] = many_us - plain_many_us
        stack.callback(context.detach, context.attach(baggage.set_baggage("tenant", "acme")))
        found["added with a span and baggage"] = least_us(single) - plain_us
    headers = [("traceparent", TRACEPARENT), ("timer-id", b"r/0/17"), ("timer-due", b"1900000000")]
    message = SimpleNamespace(topic="orders", partition=3, offset=17, key=b"order-17", headers=headers)

    def receive() -> None:
        with tracing.callback_span(message):
            pass

    found["span of a receiver"] = least_us(receive)
    key, value, _ = Encoder(1_000_000)(REQUEST)
    for name, of_request in (("plain", None), ("with a context", [("traceparent", TRACEPARENT)])):
        records = [RequestRecord(offset, key, value, of_request, 1_800_000_000_000, 1) for offset in range(1000)]
        found[f"a worker reads a request, {name}"] = least_us(partial(NATIVE.newest, records, 1_000_000)) / 1000
    print(json.dumps({name: round(us, 2) for name, us in found.items()}, indent=2))


if __name__ == "__main__":
    main()
