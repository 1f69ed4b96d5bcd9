"""Records of request topics: some are requests."""

import string
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.property.unicode_text import TEXT
from timers.core.timer import Headers, Origin
from timers.wire import checks, future, headers, topics


@dataclass
class Record:
    """What a consumer hands over."""

    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=tuple)
    offset: int = 0


HEADERS = st.lists(st.tuples(TEXT, st.none() | st.binary()), max_size=4)
MEANT_HEADERS = HEADERS.map(
    lambda sent: [each for each in sent if each[0] not in (headers.TIMER_KEY, headers.TIMER_IF)]
)
"""Without those that change what a request says."""
FOREIGN_HEADERS = HEADERS.map(headers.without_timer_headers)
TOPICS = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249).filter(topics.is_legal)
DUE = st.integers(0, checks.MAX_DUE_S)
SOURCES = st.builds(topics.source, TOPICS, st.integers(0, 10**9 - 1), st.integers(0, 10**18 - 1))
ATTEMPTS = st.integers(0, 999)
ORIGINS = st.builds(Origin, SOURCES, DUE, ATTEMPTS, st.none()) | st.builds(Origin, TEXT, DUE, ATTEMPTS, SOURCES)
"""Of timers without an id, and of timers with one."""
GOOD_VALUES = st.builds(future.encode, TOPICS, TEXT, st.binary())
KEYS = st.one_of(
    st.none(),
    st.binary(),
    st.integers(0, 30).map(lambda second: b"%d" % second),
    st.integers(0, 30).map(lambda second: b"%03d" % second),
    st.from_regex(rb"-?[0-9]{1,16}", fullmatch=True),
)
VALUES = st.one_of(
    st.none(),
    st.binary(),
    GOOD_VALUES,
    st.builds(future.encode, st.sampled_from(["", ".", "..", "a b", "x" * 250, "t"]), TEXT, st.binary(max_size=80)),
)
RECORDS = st.lists(st.builds(Record, KEYS, VALUES, st.one_of(st.none(), HEADERS)), max_size=25)


def numbered(records: list[Record]) -> list[Record]:
    for number, record in enumerate(records):
        record.offset = 3 * number  # offsets have holes
    return records
