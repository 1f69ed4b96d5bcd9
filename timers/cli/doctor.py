"""``timers doctor``: whether timers can be set here and fire, what is wrong, and what to do about it.

It sets one timer, whose callback it waits for, and changes little else: see :func:`doctor`. Each check is one line or
more; one that cannot be made, because an earlier one failed, says so. What workers say of themselves is read as the
console reads it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import click

from timers.cli.lazy import require
from timers.cli.output import Output, output_option
from timers.cli.reach import check_brokers
from timers.client.times import parse_duration
from timers.errors import AccessError, InvalidTimerError, QueryError, TimersError
from timers.process.clock import Clock
from timers.process.config.settings import Settings
from timers.process.counted import counted, span
from timers.wire import query, topics

OK, NOTE, WARNING, FAILED, SKIPPED = "ok", "note", "warning", "failed", "skipped"
_COLORS = {OK: "green", WARNING: "yellow", FAILED: "red"}

WRONG_CODE = 3

ANSWER_S = 10.0
CALLBACK_S = 15.0
"""How long the callback of a timer is waited for that is due within two seconds."""

SKEW_S, LATE_MS = 2.0, 2_000
"""A line warns above this difference of clocks, and above this lag. A tick is up to a second old."""

_MOST_PER_S = 1e12

_POLL_S = 0.1
_TICK_S = 3.0
"""A worker that runs writes a tick each second."""

_NEEDED = {22: "InitProducerId", 24: "AddPartitionsToTxn", 11: "JoinGroup", 23: "OffsetForLeaderEpoch"}
"""Requests without which no worker runs, and their numbers (docs/kafka-versions.md)."""
_TRIMS = 21
"""DeleteRecords."""


class Line(NamedTuple):
    """What a check has found.

    Attributes:
        state: one of the words of this module.
        remedy: what to do; empty: nothing.
    """

    check: str
    state: str
    says: str
    remedy: str = ""


class Doctor:
    """The checks, in an order in which a later one needs the earlier ones.

    Args:
        callback_topics: to which timers of this app fire.
        timer_topic: to which the doctor's own timer fires; None: the topic of canary timers.
        role: ``worker``: the settings and the login are those of a worker, whose rights are looked at.
    """

    def __init__(
        self, settings: Settings, callback_topics: tuple[str, ...] = (), timer_topic: str | None = None, role: str = ""
    ) -> None:
        self._settings = settings
        self._callback_topics = callback_topics
        self._timer_topic = timer_topic or settings.canary_topic
        self._may_create = timer_topic is None
        self._is_worker = role == "worker"
        self._cluster_id = ""
        self._fires = False

    def lines(self) -> Iterator[Line]:
        """Each line as soon as it is known."""
        yield from self._brokers()
        if not self._cluster_id:
            yield Line("all else", SKIPPED, "it was not looked at, because no broker answers this login")
            return
        checks: list[tuple[str, Callable[[], Iterator[Line]]]] = [("version", self._version)]
        if self._is_worker:
            checks += [("topics", self._topics), ("other apps", self._other_apps), ("transactions", self._transactions)]
        checks += [
            ("callback topics", self._targets),
            ("clocks", self._clocks),
            ("worker", self._worker),
            ("workers", self._workers),
            ("levels", self._levels),
            ("console login", self._console_login),
            ("timer", self._timer),
        ]
        for name, check in checks:
            try:
                yield from check()
            except TimersError as error:
                yield Line(name, FAILED, str(error), "What the sentence says, then run this command again.")

    # ---- brokers ---------------------------------------------------------------------------------------------------

    def _brokers(self) -> Iterator[Line]:
        from timers.kafka import connection
        from timers.kafka.clients import admin_client

        settings = self._settings
        reports = connection.ErrorReports(settings)
        try:
            check_brokers(settings)
            with reports.explained("the brokers do not say which cluster they are"):
                found = connection.metadata(admin_client(settings, reports), reports, ANSWER_S)
        except AccessError as error:
            yield Line("login", FAILED, str(error), "docs/security.md has the settings of each kind of login.")
            return
        except TimersError as error:
            yield Line(
                "brokers",
                FAILED,
                str(error),
                "Name a broker that this machine reaches, by TIMERS_BROKERS or --bootstrap-server.",
            )
            return
        self._cluster_id = str(found.cluster_id)
        yield Line("brokers", OK, f"{counted(len(found.brokers), 'broker')} of cluster {self._cluster_id}")
        yield self._login()

    def _login(self) -> Line:
        from timers.kafka import connection, login_tokens

        who = f"as {connection.principal(self._settings)}, {self._settings.security_protocol}"
        source = login_tokens.present_source(self._settings)
        left_s = None if source is None else source.left_s
        if source is not None and source.failures:
            why = f"{who}: the token is not renewed, and ends in {span(left_s)} ({source.failure})"
            return Line("login", WARNING, why, f"Let {source.name} give a new one.")
        return Line("login", OK, who if left_s is None else f"{who}, with a token for {span(left_s)} more")

    def _version(self) -> Iterator[Line]:
        from aiokafka.errors import KafkaError
        from aiokafka.protocol.admin import ApiVersionRequest

        from timers.kafka.aiokafka_clients import arguments
        from timers.kafka.aiokafka_internals import group as groups

        async def versions(send: groups.Send, _: str) -> Any:
            return await send(ApiVersionRequest())

        try:
            said = asyncio.run(groups.ask(arguments(self._settings), self._settings.app_id, versions, ANSWER_S))
        except KafkaError as error:
            yield Line("version", WARNING, f"the brokers do not say what they speak ({error!r})", "Ask their operator.")
            return
        known = {key for key, *_ in said.api_versions}
        if lacking := [name for key, name in _NEEDED.items() if key not in known]:
            remedy = "Use one of the clusters of docs/kafka-versions.md."
            yield Line("version", FAILED, f"the brokers do not know what a worker asks: {', '.join(lacking)}", remedy)
        elif _TRIMS not in known and self._settings.trimmed_topics:
            remedy = "Set TIMERS_LOG_KEEP_S=never, or use another cluster (docs/kafka-versions.md)."
            yield Line("version", WARNING, "the brokers delete no requests (DeleteRecords): topics grow", remedy)
        else:
            yield Line("version", OK, "the brokers speak all that a worker asks")

    def _topics(self) -> Iterator[Line]:
        from timers.kafka.own_topics import RED
        from timers.kafka.own_topics import WARNING as WEAK
        from timers.kafka.topics import examine

        found = examine(self._settings)
        if found.lacking:
            remedy = "`timers acls` prints the commands that give a worker its rights (docs/security.md)."
            yield Line("rights", FAILED, f"this login lacks {'; '.join(found.lacking)}", remedy)
        else:
            yield Line("rights", OK, "those of a worker on its topics and its group")
        for wrong in found.wrong:
            state = {RED: FAILED, WEAK: WARNING}.get(wrong.severity, NOTE)
            sentence, _, command = wrong.sentence.rpartition(": ") if state != NOTE else (wrong.sentence, "", "")
            yield Line("topics", state, sentence, command)
        if found.missing:
            remedy = "A worker creates them if it may; else `timers topics create --engine`."
            yield Line("topics", WARNING, f"these do not exist: {', '.join(found.missing)}", remedy)
        elif not any(wrong.severity in (RED, WEAK) for wrong in found.wrong):
            yield Line("topics", OK, "all that a worker needs, with the right settings")

    def _other_apps(self) -> Iterator[Line]:
        from timers.kafka.other_apps import RUNNING_WITHIN_S, other_apps, sentence_about

        settings = self._settings
        topics = {settings.request_topic, settings.id_topic, settings.countdown_topic, settings.marker_topic} - {""}
        for app, (shared, newest_ms) in other_apps(settings, topics | set(settings.schedule_topics)).items():
            ago_s = time.time() - newest_ms / 1000
            state = FAILED if ago_s < RUNNING_WITHIN_S else WARNING
            says, _, remedy = sentence_about(app, shared).rpartition(". ")
            yield Line("other apps", state, f"{says} (its newest progress is {span(max(0.0, ago_s))} old)", remedy)

    def _transactions(self) -> Iterator[Line]:
        from confluent_kafka import KafkaException

        from timers.kafka import connection
        from timers.kafka.clients import max_message_bytes
        from timers.kafka.records import TransactionalWriter

        settings = self._settings
        properties, name = connection.librdkafka(settings), f"{settings.app_id}-doctor-{secrets.token_hex(4)}"
        try:
            TransactionalWriter(properties, name, max_message_bytes(settings))
        except KafkaException as error:
            why = connection.ErrorReports(settings).user_error(error, f"no transaction can begin as {name!r}")
            remedy = "Let the brokers allow it: transaction.max.timeout.ms, or Write on these transactional ids."
            yield Line("transactions", FAILED, str(why), remedy)
        else:
            yield Line("transactions", OK, "the brokers let a worker begin them")

    def _targets(self) -> Iterator[Line]:
        from timers.kafka import topic_admin

        missing = topic_admin.missing(self._settings, self._callback_topics)
        for topic in self._callback_topics:
            if topic not in missing:
                yield Line("callback topics", OK, f"{topic!r} exists")
            elif self._settings.create_target_topics:
                yield Line("callback topics", OK, f"{topic!r} does not exist, and is created when a timer is due")
            else:
                says = f"{topic!r} does not exist: its timers would become dead letters"
                yield Line("callback topics", FAILED, says, f"timers topics create {topic}")

    # ---- clocks and workers ----------------------------------------------------------------------------------------

    def _clocks(self) -> Iterator[Line]:
        from confluent_kafka import KafkaException

        from timers.kafka.brokers_time import new_tick_ms, newest_ticks_ms

        clock, newest = Clock(self._settings.clock_offset_s), None
        why, seen_ms, end_s = "no worker writes ticks that this login may see", dict[int, int](), float("inf")
        while newest is None and time.monotonic() < end_s:
            try:
                newest = new_tick_ms(newest_ticks_ms(self._settings), seen_ms)
            except KafkaException as error:  # a first connection may take longer than an answer
                why = f"the brokers do not say which tick is the newest ({error.args[0].str()})"
            if newest is None:
                end_s = min(end_s, time.monotonic() + _TICK_S)
                time.sleep(_POLL_S)
        if newest is None:
            yield Line("clocks", SKIPPED, f"{why}, so no clock was compared")
            return
        ahead_s = clock.now_s() - newest / 1000
        if abs(ahead_s) <= SKEW_S:
            yield Line("clocks", OK, "this machine and the brokers agree")
            return
        side = "ahead of" if ahead_s > 0 else "behind"
        says = f"the clock of this machine is {span(abs(ahead_s))} {side} the brokers': delays count from its clock"
        yield Line("clocks", FAILED, says, "Correct the one that is wrong, with NTP (docs/operations.md#clocks).")

    def _worker(self) -> Iterator[Line]:
        from timers.process.http.asking import ForeignWorkerError, ask

        url = self._settings.query_url
        try:
            ask(self._settings, query.FIND_PATH, {"id": "timers-doctor"}, self._cluster_id, ANSWER_S)
        except ForeignWorkerError as error:
            yield Line("worker", FAILED, str(error), "Set TIMERS_WORKER_URL to a worker of this app and cluster.")
        except QueryError as error:
            yield Line("worker", WARNING, str(error), "Without it `timers list` and `get` do not answer.")
        else:
            yield Line("worker", OK, f"one of this app and cluster answers at {url} (TIMERS_WORKER_URL)")

    def _workers(self) -> Iterator[Line]:
        from timers.cli.partitions import look
        from timers.console.figures import FIRE
        from timers.console.web import board

        said = asyncio.run(look(self._settings))
        state, workers = said["state"], said["workers"]
        self._fires = bool(workers) and not said["taken"]
        found = board.findings(board.Figures(time.time(), workers, {}, taken=said["taken"]))
        states = {board.RED: FAILED, board.UNKNOWN: FAILED, board.AMBER: WARNING}
        for each in found:
            page = f"docs/operations.md#{each.page.lower()}" if each.page else ""
            remedy = " ".join(filter(None, (each.way_out, page)))
            yield Line("workers", states.get(each.level, NOTE), f"{each.where}: {each.why}", remedy)
        if state["timers"] == FIRE:
            partitions = counted(sum(sum(each["partitions"].values()) for each in workers), "partition")
            yield Line("workers", OK, f"{counted(len(workers), 'worker')} with {partitions}: all timers fire")
        elif not any(each.level in (board.RED, board.UNKNOWN) for each in found):
            yield Line("workers", FAILED, state["why"], "timers status, and the log of the workers")

    def _console_login(self) -> Iterator[Line]:
        if not self._settings.console_oidc_issuer:
            return
        require("oidc")
        from timers.console.access import check_settings
        from timers.console.oidc import Issuer
        from timers.console.problems import Problem

        check_settings(self._settings)
        try:
            asyncio.run(Issuer(self._settings).metadata())
        except Problem as problem:
            remedy = "Set TIMERS_CONSOLE_OIDC_ISSUER as its tokens name it (docs/http-api.md#login-by-openid-connect)."
            yield Line("console login", FAILED, str(problem), remedy)
        else:
            yield Line("console login", OK, f"the issuer {self._settings.console_oidc_issuer} answers")

    def _levels(self) -> Iterator[Line]:
        from timers.offline.app_state import levels_in_use

        if not self._fires:
            return
        found = levels_in_use(self._settings)
        if found.lowest < found.next:
            says = f"partitions are at level {found.lowest}, and all workers support {found.next}"
            remedy = f"If you will not go back to an older version: timers levels --raise {found.next}"
            yield Line("levels", WARNING, says, f"{remedy} (docs/operations.md#feature-levels).")
        else:
            yield Line("levels", OK, f"all partitions are at level {found.lowest}")

    # ---- one timer -------------------------------------------------------------------------------------------------

    def _timer(self) -> Iterator[Line]:
        from timers.kafka import topic_admin

        settings, topic = self._settings, self._timer_topic
        if not self._fires:
            yield Line("timer", SKIPPED, "none was set, because no worker is known to run")
            return
        if self._may_create:
            try:
                topic_admin.create_if_missing(settings, topic, partitions=1, config={"retention.ms": "3600000"})
            except TimersError as error:
                remedy = "Name a topic to which this app may fire, and whose receivers ignore it: --timer-topic TOPIC"
                yield Line("timer", SKIPPED, f"none was set: topic {topic!r} cannot be made ({error})", remedy)
                return
        try:
            yield from self._fired()
        except TimersError as error:  # a worker need not be allowed to write requests, and to read its callbacks
            state = SKIPPED if self._is_worker else FAILED
            yield Line("timer", state, f"none was seen to fire: {error}", "Run this as a client: --for client")

    def _fired(self) -> Iterator[Line]:
        """Set a timer, and wait for its callback."""
        from timers.client import TimersClient
        from timers.kafka.records import TopicReader
        from timers.offline.fired import CallbackRecord

        settings, topic = self._settings, self._timer_topic
        token, end_s = secrets.token_hex(8), time.monotonic() + CALLBACK_S
        with TopicReader(settings, topic) as reader, TimersClient(settings.brokers, timeout_s=ANSWER_S) as client:
            while not reader.assign_partitions() and time.monotonic() < end_s:
                time.sleep(_POLL_S)
            timer_id = client.schedule(topic, "timers-doctor", token, delay=1)
            for message in reader:
                if message is not None and message.value() == token.encode():
                    lag_ms = CallbackRecord.of(message).lag_ms or 0
                    if lag_ms <= LATE_MS:
                        yield Line("timer", OK, f"one was set, and fired {lag_ms} ms after its second")
                    else:
                        remedy = "Look at the lines above, and at the lag of the last hours in the console."
                        yield Line("timer", WARNING, f"one fired {span(lag_ms / 1000)} after its second", remedy)
                    return
                if time.monotonic() > end_s:
                    break
        yield Line("timer", FAILED, self._why_not(timer_id), f"timers get {timer_id}, and the log of the workers")

    def _why_not(self, timer_id: str) -> str:
        """What became of a timer whose callback did not come."""
        from timers.process.http.asking import ask

        late = f"the timer {timer_id} has not fired within {CALLBACK_S:.0f} s"
        with suppress(QueryError):
            for timer in ask(self._settings, query.FIND_PATH, {"id": timer_id}, self._cluster_id, ANSWER_S)["timers"]:
                return f"{late}: it is {timer['state']}{', ' + timer['error'] if 'error' in timer else ''}"
        return f"{late}, and no worker says why"


@click.command()
@click.option("--topic", "-t", "callback_topics", multiple=True, help="A callback topic; repeat it for several.")
@click.option(
    "--timer-topic",
    metavar="TOPIC",
    help="Where the callback of the doctor's own timer goes.  [default: the app's topic of canary timers]",
)
@click.option(
    "--for",
    "role",
    type=click.Choice(["worker", "client"]),
    default="worker",
    show_default=True,
    help="Whose settings and login these are. The rights of a worker are looked at for a worker.",
)
@click.option("--plan", metavar="RATE", help="Only compute what so many timers need: 2000/s. Asks no broker.")
@click.option("--wait", metavar="DURATION", default="1d", show_default=True, help="With --plan: how long each waits.")
@click.option(
    "--payload",
    type=click.IntRange(0),
    default=500,
    show_default=True,
    help="With --plan: bytes of callback, its key and its topic.",
)
@click.option("--workers", type=click.IntRange(1, 1000), default=3, show_default=True, help="With --plan.")
@output_option()
def doctor(
    callback_topics: tuple[str, ...],
    timer_topic: str | None,
    role: str,
    plan: str | None,
    wait: str,
    payload: int,
    workers: int,
    output: Output,
) -> int:
    """Check that timers can be set here and fire: each line says what is wrong, and what to do.

    It looks at brokers, login, rights, topics, transactions, clocks, workers and levels, and sets one timer, whose
    callback it waits for. For that it creates the topic of canary timers if it is missing, and it begins transactions
    as TIMERS_APP_ID-doctor-..., which write nothing. It changes nothing else. Run it with the settings of a worker, or
    with --for client with those of a program that sets timers.

    Exit codes: 0 nothing has failed, 3 a line says FAILED.

    \b
      timers doctor
      timers doctor --topic orders --topic reminders
      timers doctor --plan 2000/s --wait 30d
    """
    for name in (*callback_topics, *([timer_topic] if timer_topic else ())):
        if not topics.is_legal(name):
            raise click.UsageError(f"{name!r} is not {topics.LEGAL_FORM}")
    if plan is not None:
        _show_plan(_rate(plan), parse_duration(wait), payload, workers, output)
        return 0
    require("console")
    found = []
    for line in Doctor(Settings.load(), callback_topics, timer_topic, role).lines():
        found.append(line.state)
        shown = [f"{line.state.upper():<9}{line.check:<17}{line.says}"]
        shown += [f"{'':<26}→ {line.remedy}"] if line.remedy else []
        output.show(line._asdict(), *shown, fg=_COLORS.get(line.state))
    return WRONG_CODE if FAILED in found else 0


def _rate(text: str) -> float:
    """Timers a second of ``2000/s``, ``50/min``, ``1e6/d``."""
    number, _, unit = text.partition("/")
    with suppress(ValueError, InvalidTimerError):
        per_s = float(number.replace(",", "")) / parse_duration(f"1{ {'min': 'm', '': 's'}.get(unit, unit) }")
        if 0 < per_s <= _MOST_PER_S:
            return per_s
    raise click.BadParameter(f"{text!r} is no rate: write 2000/s, 50/m or 1000000/d", param_hint="--plan")


def _show_plan(per_s: float, wait_s: int, payload: int, workers: int, output: Output) -> None:
    from timers.offline.plan import Load, lines

    for name, value, words in lines(Load(per_s, wait_s, payload, workers), Settings.load(needs_brokers=False)):
        output.show({"figure": name, "value": value, "says": words}, f"{name.replace('_', ' '):<28}{words}")
