"""Pauses and resumes callback topics, and says what is paused: for the commands and the console.

A command is a record on the topic of targets. Each worker looks there once a second, and its machines take the command
with their next tick (:mod:`timers.core.fired`). Progress records say what each machine has taken.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from timers.core.fired import MAX_PAUSES, NOISY, PAUSE, Command, Hold, is_over
from timers.core.levels import HOLDS_LEVEL
from timers.core.printable import quoted, utc_text
from timers.core.progress import Progress
from timers.core.timer import TopicPartition
from timers.errors import AccessError, TargetError
from timers.kafka import connection, targets_log
from timers.kafka.brokers_time import BrokersTime
from timers.kafka.clients import admin_client
from timers.kafka.error_codes import NOT_ALLOWED, code_of
from timers.kafka.progress_log import allowed_level, read_all
from timers.kafka.request_formats import enabled_formats
from timers.kafka.topic_admin import listed
from timers.kafka.topics import Cluster
from timers.machines.firing.policy import CallbackRules
from timers.process.config.settings import Settings
from timers.process.counted import counted, duration
from timers.wire.targets import DEFAULT_RELEASE_S, MAX_TEXT_CHARACTERS, Target, Targets
from timers.wire.topics import LEGAL_FORM, commander_id, is_legal, partition_name

DAY_S = 86_400
MAX_FOR_S = 366 * DAY_S
MAX_OVER_S = 30 * DAY_S

EXAMPLE = "timers targets pause orders --for 1h"


class KeyReused(TargetError):
    """The first request with this key asked for something else."""


class Request(NamedTuple):
    """Who gives a command, and why."""

    by: str = ""
    why: str = ""
    mark: str = ""
    """Hash of the request's key, ``/``, and hash of the request; empty: it has no key. A command is given once for each
    key."""


class Given(NamedTuple):
    """A command that was given, and what it replaced."""

    target: Target
    replaced: dict[str, Any] | None
    """What :meth:`Found.shown` said of the target until then, without its partitions; None: it was not paused, and
    nothing was held, or the command was given by an earlier request."""
    is_changed_since: bool = False
    """An earlier request with the same key gave a command, and others were given since: nothing was changed now, and
    ``target`` is the newest one."""

    @property
    def shown(self) -> dict[str, Any]:
        """The command, as a JSON object."""
        command = self.target.command
        return {
            "topic": command.target,
            "number": command.number,
            "paused": command.is_paused,
            "until_s": command.until_s or None,
            "over_s": command.over_s,
            "replaced": self.replaced,
            "changed_since": self.is_changed_since,
        }

    @property
    def before(self) -> str:
        """What a command has replaced, as a sentence; empty: nothing."""
        former = self.replaced
        if former is None or former["state"] == NOISY:
            return ""
        number = "" if former["number"] is None else f" (command {former['number']})"
        about = [f"by {former['by']}"] if former["by"] else []
        about += [repr(former["why"])] if former["why"] else []
        if former["state"] == PAUSED:
            since = "" if former["since_s"] is None else f" since {utc_text(former['since_s'])}"
            about.insert(0, f"until {utc_text(former['until_s'])}" if former["until_s"] else "without an end")
            return f"before this it was paused{since}{number}: {', '.join(about)}"
        about.insert(0, f"until {utc_text(former['released_by_s'])}" if former["released_by_s"] else "at once")
        return f"before this its held timers were being sent{number}: {', '.join(about)}"


class Found(NamedTuple):
    """What is known of targets, as the topics say."""

    targets: Targets
    progress: Mapping[TopicPartition, Progress]
    missing: tuple[TopicPartition, ...]
    """Partitions of the app without progress: nothing has happened there yet."""
    level_of_missing: int
    """The feature level that they will have."""

    @property
    def below(self) -> list[str]:
        """The partitions that take no commands, because they are below the level of holds."""
        below = [tp for tp, progress in self.progress.items() if progress.level < HOLDS_LEVEL]
        below += self.missing if self.level_of_missing < HOLDS_LEVEL else ()
        return [partition_name(*tp) for tp in sorted(below)]

    @property
    def number(self) -> int:
        """The highest number of a command that is known."""
        numbers = [self.targets.number]
        for progress in self.progress.values():
            numbers += [progress.taken, *(hold.number for hold in progress.holds if hold.reason == PAUSE)]
        return max(numbers)

    def holds_of(self, target: str) -> dict[TopicPartition, tuple[Hold, ...]]:
        """The holds of a target, without partitions that have none."""
        found = {tp: progress.holds.by_target.get(target, ()) for tp, progress in self.progress.items()}
        return {tp: holds for tp, holds in found.items() if holds}

    @property
    def names(self) -> list[str]:
        """The targets that are paused, or have held timers."""
        held = {hold.target for progress in self.progress.values() for hold in progress.holds}
        asked = {name for name, each in self.targets.known.items() if each.command.is_paused}
        return sorted(held | {name for name in asked if self.waits_for(self.targets.known[name].command)})

    def waits_for(self, command: Command) -> list[str]:
        """The partitions that have not taken a command yet. While none has progress, no worker has opened one: that are
        all of them, as far as they are known."""
        if not self.progress:
            return [partition_name(*tp) for tp in self.missing]
        return [
            partition_name(*tp)
            for tp, progress in sorted(self.progress.items())
            if progress.level >= HOLDS_LEVEL and not has_taken(progress, command)
        ]

    def check_room(self, target: str, now_s: int) -> None:
        """Check that each machine has room for a pause of a target. One whose timers are being released takes room too,
        and a target may have several of them.

        Raises:
            TargetError: a machine has none.
        """
        asked = [each.command for name, each in self.targets.known.items() if each.command.is_paused and name != target]
        asked = [command for command in asked if not is_over(command.until_s, now_s)]
        first = dict.fromkeys(self.missing, Progress.first(HOLDS_LEVEL))
        for tp, progress in sorted({**first, **self.progress}.items()):
            pauses = [(hold.target, hold.is_paused) for hold in progress.holds if hold.reason == PAUSE]
            pauses += [(command.target, True) for command in asked if not has_taken(progress, command)]
            if len(pauses) < MAX_PAUSES or progress.holds.pauses(target):
                continue
            going_on = sorted({name for name, is_paused in pauses if not is_paused})
            end = "" if len(going_on) == 0 else f"wait until the held timers of {_some(going_on)} are sent"
            if paused := sorted({name for name, is_paused in pauses if is_paused}):
                end = f"{end}, or " if end else ""
                end += f"end one first, such as: timers targets resume {paused[0]} ({_some(paused)})"
            raise TargetError(
                f"nothing was paused: {partition_name(*tp)} has {counted(len(pauses), 'pause')}, with those whose held "
                f"timers are being sent, and no more than {MAX_PAUSES} fit: {end}"
            )

    def shown(self, name: str) -> dict[str, Any]:
        """What is known of one of :attr:`names`, for JSON. What a command says counts from when it was given; the
        partitions that go on as before are named."""
        target, holds = self.targets.known.get(name), self.holds_of(name)
        every = [hold for each in holds.values() for hold in each]
        paused = [hold for hold in every if hold.is_paused]
        waits = self.waits_for(target.command) if target else []
        # A pause that has ended by itself is still the newest command: then what machines hold says what it is now.
        command = target.command if target is not None and waits else None
        if paused if command is None else command.is_paused:
            state = PAUSED
        else:
            is_noisy = command is None and all(hold.reason == NOISY and hold.end is None for hold in every)
            state = NOISY if is_noisy else GOING_ON
        if target is not None and command is not None:
            ends = [command.until_s]
            releases = [target.at_s + command.over_s] if command.over_s else []
        else:
            ends = [hold.until_s for hold in paused]
            releases = [hold.resumed_s + hold.over_s for hold in every if hold.resumed_s and hold.over_s]
        begun = paused if state == PAUSED else every
        return {
            "topic": name,
            "state": state,
            "number": target.command.number if target else None,
            "since_s": min((hold.since_s for hold in begun), default=target.at_s if target else None),
            "until_s": max(ends, default=0) or None if state == PAUSED else None,
            "released_by_s": max(releases, default=None) if state == GOING_ON else None,
            "by": target.by if target else "",
            "why": target.why if target else ("" if state == NOISY else ONLY_IN_PROGRESS),
            "waits_for": waits,
            "machines": {partition_name(*tp): progress.taken for tp, progress in sorted(self.progress.items())},
        }


_REPLACED = ("state", "number", "since_s", "until_s", "released_by_s", "by", "why")

PAUSED, GOING_ON = "paused", "going-on"
"""States of a target, beside :data:`~timers.core.fired.NOISY`: its timers wait; those that waited are being sent."""

ONLY_IN_PROGRESS = "only in the progress of a partition, not in the topic of targets: give the command again"


def has_taken(progress: Progress, command: Command) -> bool:
    """Whether a machine has taken a command. It begins a pause at once, and notes the number when nothing is due."""
    if progress.taken >= command.number:
        return True
    holds = progress.holds.by_target.get(command.target, ())
    return any(hold.number == command.number and hold.is_paused for hold in holds)


def look(settings: Settings) -> Found:
    """Return what is known of targets. Blocks.

    Raises:
        TargetError: no worker of this version has run yet.
        TimersError: the brokers do not answer, or refuse, or a progress record cannot be read.
    """
    reports = connection.ErrorReports(settings)
    with reports.explained("it cannot be read what is paused"):
        found, _ = _look(settings, reports)
        return found._replace(targets=targets_log.read(settings, reports))


def _look(settings: Settings, reports: connection.ErrorReports) -> tuple[Found, Collection[str]]:
    """What is known of targets, without what their topic says; and the names of all topics."""
    admin = admin_client(settings, reports)  # lives until an error is explained: it knows who cannot be reached
    known = listed(admin, connection.CALL_TIMEOUT_S)
    if settings.targets_topic not in known or settings.progress_topic not in known:
        raise TargetError(
            f"topic {settings.targets_topic!r} does not exist: no worker of this version has run yet as TIMERS_APP_ID="
            f"{settings.app_id!r} (try: timers worker)"
        )
    cluster = Cluster("", {}, {name: each.partitions for name, each in known.items()})
    progress = read_all(settings, cluster)
    tps = [(topic, each) for topic in enabled_formats(settings) for each in range(cluster.partitions.get(topic, 0))]
    missing = tuple(tp for tp in tps if tp not in progress)
    return Found(Targets({}, {}), progress, missing, allowed_level(settings) if missing else HOLDS_LEVEL), known.keys()


Make: TypeAlias = Callable[[Found, Collection[str], int], Given]
"""Returns the record of a command, and what it replaces, given what is known of targets, the names of all topics, and
the epoch second.

Raises:
    TargetError: there can be none.
"""


def pausing(
    settings: Settings, target: str, request: Request, *, for_s: int | None = None, over_s: int | None = None
) -> Make:
    """Returns what lets the timers of a callback topic wait.

    Args:
        for_s: seconds after which the pause ends by itself; None: it goes on until it is resumed.
        over_s: seconds that the release takes then; None: :data:`DEFAULT_RELEASE_S`.

    Raises:
        TargetError: it cannot be paused.
    """
    _check_name(target)
    _check_allowed(settings, target)
    if over_s is not None and for_s is None:
        raise TargetError(
            f"a release over {duration(over_s)} belongs to a pause that ends by itself; try: {EXAMPLE} --over 10m"
        )
    over_s = DEFAULT_RELEASE_S if over_s is None else over_s
    _check_release(over_s)
    if for_s is not None and not 0 < for_s <= MAX_FOR_S:
        raise TargetError(f"a pause lasts 1 s to {MAX_FOR_S // DAY_S} days, not {duration(for_s)}; try: {EXAMPLE}")
    if len(request.why) > MAX_TEXT_CHARACTERS:
        raise TargetError(
            f"the reason has {len(request.why)} characters, and {MAX_TEXT_CHARACTERS} are allowed; try: "
            f"{EXAMPLE} --why 'no disk'"
        )

    def command(found: Found, names: Collection[str], now_s: int) -> Command:
        if target not in names:
            nearest = difflib.get_close_matches(target, names, n=1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise TargetError(
                f"topic {target!r} does not exist, or this user may not see it (Describe on the topic): {hint}Name a "
                f"callback topic, such as: {EXAMPLE}"
            )
        if below := found.below:
            raise TargetError(
                f"nothing was paused: {_some(below)} {'is' if len(below) == 1 else 'are'} below feature level "
                f"{HOLDS_LEVEL}, from which on timers can be held. When all workers run this version: "
                f"timers levels --raise {HOLDS_LEVEL}"
            )
        found.check_room(target, now_s)
        until_s = 0 if for_s is None else now_s + for_s
        return Command(found.number + 1, target, True, until_s, over_s if until_s else 0)

    return partial(_target, target, request, command)


def resuming(settings: Settings, target: str, request: Request, *, over_s: int = 0) -> Make:
    """Returns what lets the timers of a paused callback topic go on.

    Args:
        over_s: seconds that the release of held timers takes; 0: as long as it needs.

    Raises:
        TargetError: the release cannot take so long, or it is no name of a topic.
    """
    _check_name(target)  # not whether it is allowed: a setting may have changed since it was paused
    _check_release(over_s)

    def command(found: Found, names: Collection[str], now_s: int) -> Command:
        if target not in found.names and target not in found.targets.unreadable:
            paused = f": {', '.join(found.names[:5])} {'is' if len(found.names) == 1 else 'are'}" if found.names else ""
            raise TargetError(
                f"{target!r} is not paused{paused}; `timers targets list` shows what is. This pauses it: "
                f"timers targets pause {target} --for 1h"
            )
        if target in found.names and found.shown(target)["state"] == NOISY:
            raise TargetError(
                f"{target!r} is noisy, not paused: nothing to do. Its timers are sent when no others are due; this "
                f"would pause it: timers targets pause {target}"
            )
        return Command(found.number + 1, target, False, 0, over_s)

    return partial(_target, target, request, command)


def _target(
    target: str,
    request: Request,
    command: Callable[[Found, Collection[str], int], Command],
    found: Found,
    names: Collection[str],
    now_s: int,
) -> Given:
    key = request.mark.partition("/")[0]
    for name, former in found.targets.known.items() if key else ():
        if given := next((each for each in former.marks if each.partition("/")[0] == key), ""):
            *mark, number = given.split("/")
            if "/".join(mark) != request.mark:
                raise KeyReused(f"the first request with this key asked for something else, of {name!r}")
            # It is written once more, which changes nothing.
            return Given(former, None, number != str(former.command.number))
    made = command(found, names, now_s)
    replaced = {name: found.shown(target)[name] for name in _REPLACED} if target in found.names else None
    known = found.targets.known.get(target)
    marks = () if known is None else known.marks
    marks = (*marks, f"{request.mark}/{made.number}") if request.mark else marks
    # A resume has no reason of its own: while its timers are being sent, that of the pause is shown.
    why = known.why if known is not None and not made.is_paused else request.why
    return Given(Target(made, request.by[:MAX_TEXT_CHARACTERS], why, now_s, marks), replaced)


def give(settings: Settings, make: Make) -> Given:
    """Give a command, and return it, and what it has replaced, when the brokers have it. Blocks.

    Args:
        make: of :func:`pausing` or :func:`resuming`.

    Raises:
        TargetError: as ``make`` says.
        UnacknowledgedError: the brokers did not answer: they may have the command, or may still take it.
        TimersError: the brokers do not answer, or refuse. Nothing was changed.
    """
    reports = connection.ErrorReports(settings)
    given: list[Given] = []

    def prepare() -> Callable[[Targets], Target]:
        found, names = _look(settings, reports)
        now_s = BrokersTime.of(settings).now_s()

        def target(targets: Targets) -> Target:
            given.append(make(found._replace(targets=targets), names, now_s))
            return given[-1].target

        return target

    with reports.explained(f"topic {settings.targets_topic!r} did not take the command"):
        try:
            targets_log.write_command(settings, reports, prepare)
        except KafkaException as error:
            # librdkafka gives up what waits in a transaction that is refused.
            if code_of(error) not in {*NOT_ALLOWED, KafkaError._PURGE_QUEUE}:
                raise
            raise AccessError(
                f"{connection.principal(settings)} may not do that at {settings.brokers} ({error.args[0].str()}): it "
                f"takes Read and Write on topic {settings.targets_topic!r}, Write on transactional id "
                f"{commander_id(settings.app_id)!r}, and Read on {settings.progress_topic!r}"
            ) from None
    return given[-1]


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"


def _check_release(over_s: int) -> None:
    if not 0 <= over_s <= MAX_OVER_S:
        example = "timers targets resume orders --over 10m"
        raise TargetError(f"a release takes up to {MAX_OVER_S // DAY_S} days, not {duration(over_s)}; try: {example}")


def _check_name(target: str) -> None:
    if set("*?[],") & set(target):
        raise TargetError(f"{quoted(target)[:300]} is a pattern or a list: name one callback topic, such as: {EXAMPLE}")
    if not is_legal(target):
        raise TargetError(f"{quoted(target)[:300]} is no {LEGAL_FORM.removeprefix('a ')}; try: {EXAMPLE}")


def _check_allowed(settings: Settings, target: str) -> None:
    if target == settings.canary_topic:
        raise TargetError(
            f"{target!r} is the canary topic: by its timers workers see whether timers fire in time. Name another "
            f"callback topic, such as: {EXAMPLE}"
        )
    if problem := CallbackRules(settings).check_topic(target):
        raise TargetError(f"{problem.reason}. No timer fires there; name a callback topic, such as: {EXAMPLE}")
