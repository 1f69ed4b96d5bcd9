"""A timer carries the trace context of its sender, and its receiver opens a new trace that links to it."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.confluent_kafka.utils import KafkaContextSetter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from timers.cli.reach import traced as traced_command
from timers.client import Backoff, Repeat, TimerRequest, callback_span, tracing
from timers.client.request import Encoder
from timers.process.threads import BoundedThreads
from timers.queue import Message
from timers.testing import SimQueue, SimTimers
from timers.testing.sim_timers import Fired
from timers.wire import headers as h
from timers.wire.headers import Header, renewed, with_context

OTHER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OLDER = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
TRACER = trace.get_tracer("tests")


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """All spans of this process; OpenTelemetry takes one provider."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    return spans


Spans = Callable[[], list[ReadableSpan]]


@pytest.fixture(autouse=True)
def spans(exporter: InMemorySpanExporter) -> Iterator[Spans]:
    """Returns the spans of a test that have ended, in their order."""
    exporter.clear()
    tracing._is_on.cache_clear()
    tracing._warned.clear()
    yield lambda: list(exporter.get_finished_spans())
    tracing._is_on.cache_clear()


def parent_of(span: Any) -> str:
    """The header that names a span."""
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def links_of(span: ReadableSpan) -> list[str]:
    return [
        f"00-{link.context.trace_id:032x}-{link.context.span_id:016x}-{link.context.trace_flags:02x}"
        for link in span.links
    ]


def traced(headers: Any) -> list[Header]:
    return [header for header in headers or () if header[0] in h.TRACE_HEADERS]


def as_record(fired: Fired) -> Any:
    """A callback as aiokafka hands it over."""
    return SimpleNamespace(
        topic=fired.topic, partition=3, offset=17, key=fired.key, value=fired.value, headers=fired.headers
    )


def test_a_callback_is_the_root_of_a_new_trace_that_links_to_the_sender(spans: Spans) -> None:
    sim = SimTimers()
    with TRACER.start_as_current_span("order") as order:
        sim.schedule("orders", "o-1", b"unpaid", delay=900)
    (fired,) = sim.advance(900)
    token = context.attach(baggage.set_baggage("tenant", "of another request"))
    with TRACER.start_as_current_span("consume"), callback_span(as_record(fired), group="billing") as span:
        assert trace.get_current_span() is span
        assert baggage.get_all() == {}
    context.detach(token)
    _, process, _ = spans()
    assert process.parent is None
    assert process.context.trace_id != order.get_span_context().trace_id
    assert links_of(process) == [parent_of(order)]
    assert (process.name, process.kind, process.status.is_ok) == ("process orders", trace.SpanKind.CONSUMER, True)
    due_s = int(dict(fired.headers)["timer-due"] or b"")
    assert dict(process.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 17,
        "messaging.kafka.message.key": "o-1",
        "messaging.consumer.group.name": "billing",
        "timers.id": "timer-request/0/0",
        "timers.due_s": due_s,
        "timers.fired_ms": due_s * 1000,
        "timers.lag_ms": 0,
        "timers.way": "timer",
        "timers.attempt": 1,
    }


def test_headers_of_the_caller_win_and_tracestate_is_never_of_another_trace() -> None:
    sim = SimTimers()
    with TRACER.start_as_current_span("order"):
        sim.schedule("orders", None, b"", delay=1, headers={"traceparent": OTHER})
        sim.schedule("orders", None, b"", delay=2, headers=[("a", b"1")])
        sim.schedule("orders", None, b"", delay=3, token="t")
    own, with_others, with_token = sim.advance(3)
    assert traced(own.headers) == [("traceparent", OTHER.encode())]
    assert [name for name, _ in with_others.headers][:2] == ["a", "traceparent"]
    assert [name for name, _ in with_token.headers][:2] == ["callback-token", "traceparent"]
    ours = [("traceparent", b"1"), ("tracestate", b"2"), ("baggage", b"3")]
    assert with_context([("tracestate", b"x")], ours) == [("tracestate", b"x"), ("baggage", b"3")]
    assert with_context([("baggage", b"x")], ours) == [("baggage", b"x"), *ours[:2]]
    assert with_context([("b3", b"x")], [("b3", b"1")]) == [("b3", b"x")]


def test_without_a_context_a_request_is_as_it_was() -> None:
    sim = SimTimers()
    sim.schedule("orders", None, b"", delay=1)
    (fired,) = sim.advance(1)
    assert traced(fired.headers) == []
    request = TimerRequest("orders", "k", b"v", at=1_900_000_000)
    assert Encoder(1000, context=tracing.current)(request) == Encoder(1000)(request)
    assert Encoder(1000, context=tracing.current)(request)[2] is None


def test_the_flag_of_a_trace_that_is_not_sampled_state_and_baggage_are_kept(spans: Spans) -> None:
    state = trace.TraceState([("vendor", "v1")])
    asked = trace.SpanContext(7, 9, is_remote=False, trace_flags=trace.TraceFlags(0), trace_state=state)
    sim = SimTimers()
    around = baggage.set_baggage("tenant", "acme", trace.set_span_in_context(trace.NonRecordingSpan(asked)))
    token = context.attach(around)
    sim.schedule("orders", None, b"", delay=1)
    context.detach(token)
    (fired,) = sim.advance(1)
    assert dict(traced(fired.headers)) == {
        "traceparent": f"00-{7:032x}-{9:016x}-00".encode(),
        "tracestate": b"vendor=v1",
        "baggage": b"tenant=acme",
    }
    with callback_span(as_record(fired)):
        assert baggage.get_baggage("tenant") == "acme"
    (process,) = spans()
    (link,) = process.links
    assert (link.context.trace_flags, link.context.trace_state) == (0, state)
    assert baggage.get_baggage("tenant") is None


def test_a_retry_carries_the_newest_context_once(spans: Spans) -> None:
    sim = SimTimers()
    with TRACER.start_as_current_span("order") as order:
        sim.schedule("orders", "o-1", b"", delay=1)
    asked, ways = [parent_of(order)], []
    for _ in range(3):
        (fired,) = sim.advance(60)
        assert [value for _, value in traced(fired.headers)] == [asked[-1].encode()]
        with callback_span(as_record(fired)) as span:
            sim.retry_later(as_record(fired), backoff=Backoff(first_s=5, retries=2))
        asked.append(parent_of(span))
    (letter,) = sim.dead_letters
    assert letter.code == "retries-exhausted"
    processed = spans()[1:]
    assert [links_of(each) for each in processed] == [[each] for each in asked[:3]]
    ways = [(each.attributes or {}) for each in processed]
    assert [(each["timers.way"], each["timers.attempt"]) for each in ways] == [("timer", 1), ("retry", 2), ("retry", 3)]


def test_of_several_contexts_in_a_message_the_newest_one_is_kept() -> None:
    first: list[Header] = [("traceparent", b"1"), ("a", b"1"), ("tracestate", b"1")]
    others: list[Header] = [("a", b"1"), ("a", b"2")]
    headers: list[Header] = [*first, ("Traceparent", b"2"), ("a", b"2"), ("baggage", b"2")]
    assert renewed(headers) == [*others, ("traceparent", b"2"), ("baggage", b"2")], "no state of another trace"
    assert renewed(first) == [("a", b"1"), ("traceparent", b"1"), ("tracestate", b"1")]
    assert renewed([*headers, ("tracestate", b"2")])[-3:-1] == [("traceparent", b"2"), ("tracestate", b"2")]
    assert renewed(headers, [("baggage", b"3")]) == [*others, ("traceparent", b"2"), ("baggage", b"3")]
    assert renewed(headers, [("traceparent", b"3")]) == [*others, ("baggage", b"2"), ("traceparent", b"3")]
    assert renewed([("b3", b"1")], [("b3", b"2")]) == [("b3", b"2")]


def test_an_instrumented_producer_adds_no_second_context() -> None:
    setter = KafkaContextSetter()
    headers = h.OneContext([("a", b"1"), ("traceparent", OTHER.encode())])
    for _ in range(2):  # it is called again if its queue is full
        setter.set(headers, "traceparent", OLDER)
        setter.set(headers, "tracestate", "a=1")
        setter.set(headers, "baggage", "a=1")
    definition = h.OneContext([("timer-trace-traceparent", OTHER.encode())])
    setter.set(definition, "traceparent", OLDER)
    assert len(definition) == 1
    assert headers == [("a", b"1"), ("traceparent", OTHER.encode()), ("baggage", b"a=1")]


def test_a_receiver_takes_the_newest_of_several_contexts(spans: Spans) -> None:
    """Producers that other libraries instrument add theirs behind those that are there."""
    headers = [("traceparent", OLDER.encode()), ("traceparent", OTHER.encode())]
    with callback_span(SimpleNamespace(topic="orders", headers=headers)):
        pass
    assert links_of(spans()[0]) == [OTHER]


def test_each_occurrence_links_to_the_definition_and_the_context_says_not_what_a_timer_is(spans: Spans) -> None:
    sim = SimTimers()
    verdicts, setters = [], []
    for name in ("first", "second"):
        with TRACER.start_as_current_span(name) as span:
            setters.append(parent_of(span))
            verdicts.append(sim.update("load", "reports", None, b"load", repeat=Repeat.every(60)).verdict)
        sim.advance(30)
    assert verdicts == ["set", "unchanged"]
    fired = sim.advance(300)
    assert len(fired) == 5
    for each in fired:
        assert traced(each.headers) == [("traceparent", setters[0].encode())]
        with callback_span(as_record(each)):
            pass
    processed = spans()[2:]
    assert [links_of(each) for each in processed] == [[setters[0]]] * 5
    about = [dict(each.attributes or {}) for each in processed]
    assert {each["timers.way"] for each in about} == {"repeat"}
    assert all(each["timers.nominal_s"] == each["timers.due_s"] for each in about)


def test_a_context_that_does_not_fit_into_a_repeating_timer_is_left_out() -> None:
    sim = SimTimers()
    token = context.attach(baggage.set_baggage("user", "ada"))
    with TRACER.start_as_current_span("set") as span:
        sim.schedule("reports", None, b"", id="load", repeat=Repeat.every(60))
        sim.schedule("reports", None, b"", id="full", repeat=Repeat.every(60), headers={"a": b"x" * 4000})
        own = {"a": b"1", "traceparent": OTHER.encode(), "baggage": b"a=1"}
        sim.schedule("reports", None, b"", id="own", repeat=Repeat.every(60), headers=own)
    context.detach(token)
    load, full, mine = sim.advance(60)
    assert traced(load.headers) == [("traceparent", parent_of(span).encode())], "baggage would stay for years"
    assert traced(full.headers) == []
    assert sorted(traced(mine.headers)) == [("baggage", b"a=1"), ("traceparent", OTHER.encode())]
    sim.advance(10)
    again = {**own, "traceparent": OLDER.encode()}
    assert sim.update("own", "reports", None, b"", repeat=Repeat.every(60), headers=again).verdict == "unchanged"


def test_nothing_happens_if_it_is_turned_off(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMERS_TRACING", "0")
    sim = SimTimers()
    with TRACER.start_as_current_span("order"):
        assert tracing.current() == ()
        sim.schedule("orders", None, b"", delay=1)
    (fired,) = sim.advance(1)
    assert traced(fired.headers) == []
    with callback_span(as_record(fired)) as span:
        assert span is None
    assert [each.name for each in spans()] == ["order"]


def test_a_failure_is_recorded_and_raised(spans: Spans) -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    for error in (ValueError("no"), Hostile(), SystemExit(1)):
        with pytest.raises(type(error)), callback_span(SimpleNamespace(topic="orders", headers=None)):
            raise error
    with pytest.raises(asyncio.CancelledError), callback_span(SimpleNamespace(topic="orders", headers=None)):
        raise asyncio.CancelledError
    *failed, cancelled = spans()
    assert [(each.attributes or {})["error.type"] for each in failed] == [
        "ValueError",
        Hostile.__qualname__,
        "SystemExit",
    ]
    assert not any(each.status.is_ok for each in failed)
    assert cancelled.status.is_ok


@pytest.mark.parametrize(
    "message",
    [
        None,
        object(),
        SimpleNamespace(),
        SimpleNamespace(topic="t", headers=[("timer-due", b"9" * 40), ("timer-fired", b"x"), ("timer-id", b"\xff")]),
        SimpleNamespace(topic="t", key=2**70, headers=[("baggage", b"x" * 10**6)]),
        SimpleNamespace(topic="t", headers=[("timer-due", None), ("traceparent", b"\xff"), ("retry-attempt", b"-1")]),
        SimpleNamespace(topic="t", headers={"traceparent": b"00-0-0-00", "timer-id": b"x" * 100_000}),
    ],
)
def test_any_message_has_a_span(message: Any, spans: Spans) -> None:
    with callback_span(message):
        pass
    (each,) = spans()
    assert each.links == ()
    assert all(len(str(value)) <= 300 for value in (each.attributes or {}).values())


def test_an_error_of_opentelemetry_reaches_neither_sender_nor_receiver(
    spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from opentelemetry import propagate

    class Broken:
        fields = frozenset({"traceparent"})

        def inject(self, *_: object, **__: object) -> None:
            raise RuntimeError("no")

        extract = inject

    monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", Broken())  # so that the former one is set again
    sim = SimTimers()
    with TRACER.start_as_current_span("order"):
        sim.schedule("orders", None, b"", delay=1)
    (fired,) = sim.advance(1)
    with callback_span(as_record(fired)) as span:
        assert span is None
    assert "a timer has no trace context, because OpenTelemetry failed: RuntimeError('no')" in caplog.text
    assert "a callback has no span" in caplog.text
    caplog.clear()
    with TRACER.start_as_current_span("order"):
        sim.schedule("orders", None, b"", delay=1)
    assert "no trace context" not in caplog.text, "it may come with each timer"


@pytest.mark.parametrize(
    "written",
    [
        {"\ud800": "x"},  # as a name it would end the process in librdkafka
        {"a\0b": "x"},
        {5: "x"},
        {"x": 5},
        {"x": "\ud800"},
        {"timer-due": "5"},
        {"timer-if": "absent"},
        {"traceparent": "x" * 8193},
    ],
    ids=ascii,
)
@pytest.mark.parametrize("repeat", [None, Repeat.every(900)])
def test_what_a_propagator_writes_is_sent_only_if_it_can_be_read(
    written: dict[Any, Any], repeat: Repeat | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import propagate

    monkeypatch.setattr(propagate, "inject", lambda carrier, _: carrier.update(written))
    request = TimerRequest("orders", None, b"", None if repeat else 1_900_000_000, id="o-1", repeat=repeat)
    plain = Encoder(10_000)(request)
    with TRACER.start_as_current_span("order"):
        assert Encoder(10_000, (), tracing.current)(request) == plain


def test_handlers_of_a_queue_have_spans_and_what_they_send_again_carries_theirs(spans: Spans) -> None:
    queue = SimQueue("orders", backoff=Backoff(first_s=5, retries=1))
    with TRACER.start_as_current_span("order") as order:
        queue.send(b"order 17", key="c-4")
    seen: list[trace.Span] = []

    def handler(message: Message) -> None:
        seen.append(trace.get_current_span())
        message.output("done", b"")
        raise ValueError("no")

    queue.run(handler)
    queue.advance(60)
    queue.run(handler)
    _, first, second = spans()
    assert [links_of(first), links_of(second)] == [[parent_of(order)], [parent_of(seen[0])]]
    assert [first.parent, second.parent] == [None, None]
    assert not first.status.is_ok
    about = dict(second.attributes or {})
    assert (about["timers.way"], about["timers.attempt"], about["messaging.consumer.group.name"]) == (
        "retry",
        2,
        "queue.orders",
    )
    assert about["messaging.destination.name"] == "orders"


async def test_threads_that_work_for_a_task_have_its_context() -> None:
    threads = BoundedThreads("test-tracing", 1)
    with TRACER.start_as_current_span("order") as order:
        found = await asyncio.wrap_future(threads.call(tracing.current))
    assert found == (("traceparent", parent_of(order).encode()),)


def test_what_another_process_said_serves_where_there_is_no_context(spans: Spans) -> None:
    said = [("traceparent", OTHER.encode())]
    current = tracing.Current()
    with tracing.given(said):
        assert tracing.current() == current() == said
        with TRACER.start_as_current_span("here") as span:
            assert tracing.current() == current() == (("traceparent", parent_of(span).encode()),)
        assert current() == said
    assert tracing.current() == current() == ()


def test_a_command_gives_its_timers_the_context_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    command = traced_command(lambda: list(tracing.current()))
    assert command() == []
    monkeypatch.setenv("TRACEPARENT", OTHER)
    monkeypatch.setenv("TRACESTATE", "a=1")
    assert command() == [("traceparent", OTHER.encode()), ("tracestate", b"a=1")]
    monkeypatch.setenv("TRACEPARENT", "00-no")
    monkeypatch.setenv("BAGGAGE", "tenant=acme")
    assert command() == [("baggage", b"tenant=acme")]
    assert list(tracing.current()) == []


def test_a_program_without_opentelemetry_imports_none_of_it() -> None:
    program = """if True:
        import sys
        from timers.client import callback_span
        from timers.testing import SimQueue, SimTimers
        sim = SimTimers()
        sim.schedule("orders", None, b"", delay=1)
        with callback_span(sim.advance(1)[0]) as span:
            assert span is None
        queue = SimQueue("orders")
        queue.send(b"")
        assert queue.run(print) == 1
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
