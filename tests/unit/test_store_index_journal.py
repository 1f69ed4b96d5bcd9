"""The index journal is bounded by bytes, whatever the lengths of ids and messages are."""

import random

import pytest

from timers.core.operation import Entry, RepeatingVersion
from timers.machines.store.memory_limit import ENTRY_BYTES, IndexJournal

MAX_BYTES = 100_000


def held_bytes(journal: IndexJournal) -> int:
    held = [*journal._newer.items(), *journal._older.items(), *journal._known.items()]
    messages = [len(each[3]) + len(each[4]) for _, each in held if each is not None and len(each) == 5]
    return sum(len(id) for id, _ in held) + ENTRY_BYTES * len(held) + sum(messages)


@pytest.mark.parametrize("of_messages", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_memory_is_bounded_and_every_entry_reaches_the_index(seed: int, of_messages: bool) -> None:
    draw = random.Random(seed)
    journal = IndexJournal(lambda: MAX_BYTES)
    index: dict[bytes, Entry | None] = {}
    expected: dict[bytes, Entry | None] = {}
    most = 0
    for number in range(400):
        length = draw.choice([8, 8, 32, 500, 3000])  # of all ids, or of all messages, of the batch
        entry: Entry = (number, number, number, b"queue", bytes(length)) if of_messages else (number, number, number)
        id_length = 8 if of_messages else length
        batch: dict[bytes, Entry | None] = {
            b"%0*d" % (id_length, draw.randrange(3000)): entry for _ in range(draw.randint(1, 12))
        }
        expected |= batch
        index |= journal.next_to_index(batch)
        journal.note_written(batch)
        ids = {draw.choice(list(expected)), draw.choice(list(batch)), b"unknown"}
        found, missing = journal.find(ids)
        assert found == {id: expected.get(id) for id in ids - set(missing)}
        journal.note_known({id: index.get(id) for id in missing})
        assert journal.find(missing)[1] == [], "the next look-up reads them from memory"
        most = max(most, held_bytes(journal))
    assert 2 * MAX_BYTES * 0.9 < most < 2.5 * MAX_BYTES * 1.5
    found, missing = journal.find(expected.keys())
    assert found | {id: index[id] for id in missing} == expected


def test_the_journal_is_short_also_if_the_same_ids_are_written_again_and_again() -> None:
    journal, index = IndexJournal(lambda: MAX_BYTES), dict[bytes, Entry | None]()
    batches = MAX_BYTES // ENTRY_BYTES
    for number in range(20 * batches):
        batch: dict[bytes, Entry | None] = {b"each-second": (number, number, number), b"%d" % (number % 10): None}
        index |= journal.next_to_index(batch)
        journal.note_written(batch)
        assert journal.next - journal.older_first <= 3 * batches
    found, missing = journal.find([b"each-second"])
    assert found == {b"each-second": (number, number, number)} and not missing


def repeating(due_s: int) -> RepeatingVersion:
    return due_s, due_s, due_s, 0, b"8 bytes.", 0


def test_the_entry_of_a_timer_that_repeats_goes_back_to_the_index_at_once() -> None:
    journal = IndexJournal(lambda: MAX_BYTES)
    journal.note_known({b"repeats": repeating(0), b"ends": repeating(0), b"single": (0, 0, 0)})
    batch: dict[bytes, Entry | None] = {b"repeats": repeating(1), b"single": (1, 1, 1), b"ended": None}
    batch[b"ends"] = (*repeating(1), True)  # its last occurrence
    journaled, direct = journal.split(batch)
    assert (set(journaled), set(direct)) == ({b"single", b"ended"}, {b"repeats", b"ends"})
    journal.note_known(direct)
    journal.next_to_index(journaled)
    journal.note_written(journaled)
    assert journal.find(batch) == (batch, []), "the next look-up reads it from memory"
    journal.note_known({b"repeats": repeating(2)})
    assert journal.find([b"repeats"]) == ({b"repeats": repeating(2)}, [])
    journal.note_known({b"absent": None, b"another": (0, 0, 0)})
    assert dict(journal.known_chains()) == {b"repeats": repeating(2)}


def test_an_entry_goes_to_the_journal_if_it_is_new_or_an_older_one_is_there() -> None:
    """What is in the journal is newer than what is in the index; and a definition is replaced a moment later."""
    journal = IndexJournal(lambda: MAX_BYTES)
    journal.note_known({b"id": (0, 0, 0), b"new": None})
    set_once: dict[bytes, Entry | None] = {b"id": (1, 1, 1)}
    journal.next_to_index(set_once)
    journal.note_written(set_once)
    batch: dict[bytes, Entry | None] = {b"id": repeating(2), b"new": repeating(2)}
    assert journal.split(batch) == (batch, {})
