"""Commands about targets: their numbers and refusals, and what a worker says of machines that differ from the topic."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.harness.constants import Constants
from timers.cli import pending
from timers.core.fired import MAX_PAUSES, NOISY, Command, Hold, Holds, Moment
from timers.core.keys import NOTHING_FIRED
from timers.core.levels import FIRST_LEVEL, HOLDS_LEVEL
from timers.core.progress import Progress
from timers.errors import TargetError, TimersError
from timers.offline import targets as offline
from timers.offline.targets import Found, Request, pausing, resuming
from timers.process.config.settings import Settings
from timers.wire.query import HeldCounter
from timers.wire.targets import Target, Targets
from timers.worker.consumer import target_watch
from timers.worker.consumer.target_watch import TargetWatch

NOW_S = 1_900_000_000
BEGIN = Moment(5, NOTHING_FIRED, 0)
TP = ("timer-request", 0)


def progress(*holds: Hold, taken: int = 0) -> Progress:
    return replace(Progress.first(HOLDS_LEVEL), holds=Holds(holds), taken=taken, fired_through=(NOW_S, 1))


def hold(target: str, number: int, **fields: Any) -> Hold:
    return Hold(target, "pause", number, BEGIN, NOW_S - 60, **fields)


def found(*progresses: Progress, known: tuple[Command, ...] = ()) -> Found:
    targets = Targets({each.target: Target(each) for each in known}, {})
    return Found(targets, {("timer-request", at): each for at, each in enumerate(progresses)}, (), HOLDS_LEVEL)


def paused(there: Found, target: str = "mails", **how: Any) -> Command:
    return pausing(Settings(), target, Request("ops"), **how)(there, {"mails", "orders"}, NOW_S).target.command


def test_the_number_is_above_all_that_topic_and_progress_know() -> None:
    assert paused(found(progress())).number == 1
    assert (
        paused(found(progress(taken=4), progress(hold("orders", 9)), known=(Command(6, "orders", True),))).number == 10
    )


def test_an_end_is_a_second_and_has_a_slow_release() -> None:
    assert paused(found(progress()), for_s=60) == Command(1, "mails", True, NOW_S + 60, 600)
    assert paused(found(progress())) == Command(1, "mails", True)


@pytest.mark.parametrize("target", ["mail*", "a,b", "", "a b", "x" * 250])
def test_what_is_no_callback_topic_is_refused_with_an_example(target: str) -> None:
    for make in (pausing, resuming):
        with pytest.raises(TargetError, match="timers targets pause orders"):
            make(Settings(), target, Request())


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("timer-request", "is internal"),
        ("other-timer-targets", "in TIMERS_CALLBACK_ALLOW allows it"),
        ("__x", "in TIMERS_CALLBACK_ALLOW allows it"),
        (Settings().canary_topic, "is the canary topic"),
        ("order-denied", "of TIMERS_CALLBACK_DENY"),
        ("mails", "not among those of TIMERS_CALLBACK_ALLOW"),
    ],
)
def test_a_topic_to_which_no_timer_fires_is_not_paused(target: str, why: str) -> None:
    settings = Settings(callback_allow=("order-*",), callback_deny=("*-denied",))
    with pytest.raises(TargetError, match=f"{why}.* timers targets pause orders"):
        pausing(settings, target, Request())


def test_what_the_settings_allow_is_paused_and_what_they_allowed_is_resumed() -> None:
    allowing = Settings(callback_allow=("*", "timer-request", "order-progress"))
    for target in ("timer-request", "order-progress"):
        made = pausing(allowing, target, Request())(found(progress()), {target}, NOW_S)
        assert made.target.command.is_paused
    there = found(progress(hold("order-progress", 1)))
    assert resuming(Settings(), "order-progress", Request())(there, (), NOW_S).target.command.number == 2


def test_partitions_below_the_level_are_named() -> None:
    with pytest.raises(TargetError, match="timer-request/1 is below feature level 10"):
        paused(found(progress(), Progress.first(FIRST_LEVEL)))
    with pytest.raises(TargetError, match="timer-request/7 is below"):
        paused(found(progress())._replace(missing=(("timer-request", 7),), level_of_missing=FIRST_LEVEL))


def test_no_more_are_paused_than_a_machine_holds() -> None:
    full = found(progress(*(hold(f"t{at}", at + 1) for at in range(MAX_PAUSES))))
    with pytest.raises(TargetError, match=r"timer-request/0 has 32 pauses.* timers targets resume t0"):
        paused(full)
    released = (hold("orders", at, end=BEGIN, resumed_s=NOW_S) for at in range(MAX_PAUSES))
    with pytest.raises(TargetError, match=r"wait until the held timers of orders are sent$"):
        paused(found(progress(), progress(*released)))
    asked = tuple(Command(at + 1, f"t{at}", True) for at in range(MAX_PAUSES))
    for there in (found(progress(), known=asked), found(known=asked)._replace(missing=(TP,))):
        with pytest.raises(TargetError, match="has 32 pauses"):
            paused(there)
    ended = tuple(command._replace(until_s=NOW_S) for command in asked)
    assert paused(found(progress(), known=ended)).number == MAX_PAUSES + 1
    assert paused(full._replace(progress={TP: progress(hold("mails", 1))})).number == 2  # it is paused: a change


def test_only_what_is_paused_is_resumed() -> None:
    with pytest.raises(TargetError, match="'mails' is not paused: orders is"):
        resuming(Settings(), "mails", Request())(found(progress(hold("orders", 1))), (), NOW_S)
    there = found(progress(hold("mails", 1)))
    assert resuming(Settings(), "mails", Request(), over_s=60)(there, (), NOW_S).target.command == Command(
        2, "mails", False, 0, 60
    )
    with pytest.raises(TargetError, match="'mails' is noisy, not paused: nothing to do"):
        resuming(Settings(), "mails", Request())(found(progress(hold("mails", 1)._replace(reason=NOISY))), (), NOW_S)
    damaged = found(progress())._replace(targets=Targets({}, {"mails": "it is damaged"}))
    assert resuming(Settings(), "mails", Request())(damaged, (), NOW_S).target.command.number == 1


def test_a_paused_topic_is_shown_until_nothing_is_held() -> None:
    command = Command(3, "mails", True, NOW_S + 60, 600)
    there = found(progress(hold("mails", 3, until_s=NOW_S + 60), taken=3), progress(taken=2), known=(command,))
    shown = there.shown("mails")
    assert (shown["state"], shown["since_s"], shown["until_s"]) == ("paused", NOW_S - 60, NOW_S + 60)
    assert (shown["waits_for"], shown["machines"]) == (
        ["timer-request/1"],
        {"timer-request/0": 3, "timer-request/1": 2},
    )
    released = hold("mails", 3, end=BEGIN, resumed_s=NOW_S, over_s=60)
    going = found(progress(released, taken=4), known=(Command(4, "mails", False, 0, 60),))
    assert (going.shown("mails")["state"], going.shown("mails")["released_by_s"]) == ("going-on", NOW_S + 60)
    ended = found(progress(released, taken=3), known=(command,)).shown("mails")
    assert (ended["state"], ended["until_s"]) == ("going-on", None), "a pause that ended by itself"
    assert found(progress(taken=4), known=(Command(4, "mails", False),)).names == []
    assert found(progress(hold("mails", 3))).shown("mails")["why"].startswith("only in the progress of a partition")


def test_right_after_a_command_all_that_is_shown_is_of_the_new_one() -> None:
    held = hold("mails", 3, until_s=NOW_S + 60)
    there = found(progress(held, taken=3))
    for command, state, until_s, by_s in (
        (Command(4, "mails", True), "paused", None, None),
        (Command(4, "mails", True, NOW_S + 9, 600), "paused", NOW_S + 9, None),
        (Command(4, "mails", False, 0, 90), "going-on", None, NOW_S + 90),
        (Command(4, "mails", False), "going-on", None, None),
    ):
        shown = there._replace(targets=Targets({"mails": Target(command, "ann", "new", NOW_S)}, {})).shown("mails")
        assert (shown["state"], shown["until_s"], shown["released_by_s"]) == (state, until_s, by_s)
        assert (shown["since_s"], shown["by"], shown["waits_for"]) == (NOW_S - 60, "ann", ["timer-request/0"])
    going = hold("mails", 3, end=BEGIN, resumed_s=NOW_S - 9, over_s=60)
    again = found(progress(going, taken=3))._replace(
        targets=Targets({"mails": Target(Command(4, "mails", True), "ann", "", NOW_S)}, {})
    )
    shown = again.shown("mails")
    assert (shown["state"], shown["since_s"], shown["released_by_s"]) == ("paused", NOW_S, None)


def test_a_command_says_what_it_replaces_and_a_resume_keeps_the_reason() -> None:
    first = pausing(Settings(), "mails", Request("ops", "down"), for_s=60)(found(progress()), {"mails"}, NOW_S)
    assert (first.replaced, first.before) == (None, "")
    there = found(progress(hold("mails", 1, until_s=NOW_S + 60)))
    there = there._replace(targets=Targets({"mails": first.target}, {}))
    second = pausing(Settings(), "mails", Request("ann"))(there, {"mails"}, NOW_S)
    assert second.replaced is not None and (second.replaced["until_s"], second.replaced["why"]) == (NOW_S + 60, "down")
    assert second.before == (
        "before this it was paused since 2030-03-17T17:45:40Z (command 1): until 2030-03-17T17:47:40Z, by ops, 'down'"
    )
    resumed = resuming(Settings(), "mails", Request("ann"), over_s=90)(there, (), NOW_S)
    assert (resumed.target.by, resumed.target.why, resumed.before) == ("ann", "down", second.before)
    going = found(progress(hold("mails", 1, end=BEGIN, resumed_s=NOW_S, over_s=90), taken=2))
    going = going._replace(targets=Targets({"mails": resumed.target}, {}))
    assert pausing(Settings(), "mails", Request("ann"))(going, {"mails"}, NOW_S).before == (
        "before this its held timers were being sent (command 2): until 2030-03-17T17:48:10Z, by ann, 'down'"
    )
    damaged = found(progress())._replace(targets=Targets({}, {"mails": "it is damaged"}))
    assert resuming(Settings(), "mails", Request())(damaged, (), NOW_S).before == ""


def test_a_pause_before_any_worker_has_opened_a_partition_is_shown_and_waited_for() -> None:
    command = Command(1, "mails", True)
    there = found(known=(command,))._replace(missing=(TP,))
    assert there.names == ["mails"]
    assert (there.shown("mails")["state"], there.waits_for(command)) == ("paused", ["timer-request/0"])
    assert resuming(Settings(), "mails", Request())(there, (), NOW_S).target.command.number == 2


def test_what_is_due_is_counted_page_by_page() -> None:
    count = HeldCounter("mails", 90_000)
    assert count.asked == {"topic": "mails", "to": "90001", "by": "86400"}
    assert count.shown == {"held": None, "held_at_least": False}
    count.add({"timers": [{"timers": 2}, {"timers": 3}], "next": "1/t/0/5", "missing": []})
    assert (count.asked["cursor"], count.goes_on, count.shown) == ("1/t/0/5", True, {"held": 5, "held_at_least": True})
    count.add({"timers": [{"timers": 1}], "next": None, "missing": []})
    assert (count.goes_on, count.shown) == (False, {"held": 6, "held_at_least": False})
    count.add({"timers": [], "next": None, "missing": ["t/1"]})
    assert count.shown["held_at_least"]


def test_a_move_to_another_app_names_what_is_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for there in (found(progress(hold("mails", 1))), found(progress()), TargetError("no"), TimersError("no login")):

        def look(settings: Settings, there: Found | TimersError = there) -> Found:
            if isinstance(there, TimersError):
                raise there
            return there

        monkeypatch.setattr(offline, "look", look)
        pending._warn_of_held(Settings())
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "timers targets pause mails" in said[0] and "no login" in said[1], said


# ---- what a worker says ----------------------------------------------------------------------------------------------


class SimPool:
    """A pool with one machine."""

    def __init__(self, machine: Progress) -> None:
        self.runners = {
            TP: SimpleNamespace(machine=SimpleNamespace(progress=machine, recovering=False, rescue_count=0))
        }
        self.tick_s = NOW_S
        self.commands: tuple[Command, ...] = ()

    def command(self, commands: tuple[Command, ...]) -> None:
        self.commands = commands


def watch(pool: SimPool) -> TargetWatch:
    watch = TargetWatch.__new__(TargetWatch)
    service: Any = watch
    service._topic, service._pool, service._targets = "targets", pool, Targets({}, {})
    service._unread_since, service._since = None, {}
    service._read = SimpleNamespace(is_set=lambda: False, set=lambda: None)
    return watch


@pytest.fixture
def at_once(constants: Constants) -> None:
    constants(target_watch, DIFFERS_S=0.0)


@pytest.mark.parametrize(
    ("holds", "commands", "says"),
    [
        ((hold("mails", 3),), (Command(3, "mails", True),), None),
        ((), (Command(3, "mails", False),), None),
        ((), (Command(3, "mails", True, NOW_S - 1),), None),
        ((hold("mails", 3, end=BEGIN),), (), None),
        ((hold("mails", 3),), (), "paused by command 3, which is only in the progress of a partition"),
        ((hold("mails", 3),), (Command(2, "mails", False),), "only in the progress of a partition"),
        ((), (Command(3, "mails", True),), "command 3, pause mails, was not taken"),
        ((hold("mails", 3),), (Command(4, "mails", False),), "timers targets resume mails"),
    ],
)
def test_a_machine_that_differs_from_the_topic_is_named_with_the_command(
    at_once: None, holds: tuple[Hold, ...], commands: tuple[Command, ...], says: str | None
) -> None:
    pool = SimPool(progress(*holds))
    watching = watch(pool)
    watching._note(Targets({each.target: Target(each) for each in commands}, {}), "")
    assert pool.commands == commands
    found = watching.problems.get("timer-request/0")
    assert (found is None) if says is None else (found is not None and says in found), found


@pytest.mark.parametrize(
    ("holds", "command", "says"),
    [
        ((), Command(3, "mails", True, NOW_S + 60, 600), "pause mails --for 1m --over 10m"),
        ((hold("mails", 3),), Command(4, "mails", False, 0, 90), "resume mails --over 1m30s"),
        ((hold("mails", 3),), Command(3, "mails", True, NOW_S - 1, 90), "resume mails --over 1m30s"),
        ((hold("mails", 3, until_s=NOW_S + 5, over_s=7),), None, "pause mails --for 5s --over 7s, or "),
    ],
)
def test_the_command_in_red_asks_for_the_same(
    at_once: None, holds: tuple[Hold, ...], command: Command | None, says: str
) -> None:
    watching = watch(SimPool(progress(*holds)))
    watching._note(Targets({command.target: Target(command)} if command else {}, {}), "")
    assert f"timers targets {says}" in watching.problems["timer-request/0"]


def test_all_that_is_wrong_with_a_partition_or_the_topic_is_said(at_once: None) -> None:
    watching = watch(SimPool(progress(hold("mails", 3), hold("orders", 4))))
    watching._note(Targets({}, {"a": "it is damaged", "b": "it is damaged"}), "")
    assert all(f"{name!r} is paused" in watching.problems["timer-request/0"] for name in ("mails", "orders"))
    assert all(f"the record of {name!r}" in watching.problems["targets"] for name in ("a", "b"))


async def test_the_end_of_the_connection_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    watching = TargetWatch(Settings(), cast("Any", SimPool(progress())))

    async def look(wait_s: float) -> None:
        watching._stopped.set()
        raise OSError("closed")

    watching._reader = cast("Any", SimpleNamespace(look=look))
    await cast("Any", TargetWatch._watch).fun(watching)
    assert not caplog.records and watching._unread_since is None


def test_a_difference_is_shown_after_some_time_only() -> None:
    watching = watch(SimPool(progress(hold("mails", 3))))
    watching._note(Targets({}, {}), "")
    assert not watching.problems


def test_a_machine_that_is_behind_ends_its_pause_later(at_once: None) -> None:
    pool = SimPool(progress(hold("mails", 3)))
    pool.tick_s += 60
    watching = watch(pool)
    watching._note(Targets({"mails": Target(Command(4, "mails", False))}, {}), "")
    assert not watching.problems


def test_a_topic_that_cannot_be_read_or_is_damaged_is_named_and_keeps_what_is_known(at_once: None) -> None:
    pool = SimPool(progress())
    watching = watch(pool)
    known = Targets({"orders": Target(Command(1, "orders", False))}, {"mails": "it is damaged"})
    watching._note(known, "")
    assert "timers targets pause mails" in watching.problems["targets"]
    watching._note(None, "no leader")
    assert "cannot be read (no leader)" in watching.problems["targets"]
    assert pool.commands == known.commands
