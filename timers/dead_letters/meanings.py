"""What the codes of dead letters mean, and what to do. ``docs/bad-input.md`` has the same sentences, with links."""

from __future__ import annotations

from typing import NamedTuple


class Meaning(NamedTuple):
    """The meaning of a code."""

    why: str
    """Why the request became a dead letter."""
    way_out: str
    """What to do about it."""


MEANINGS = {
    "key-missing": Meaning(
        "The record has no key, so it has no due second.",
        "Send the due epoch second as key.",
    ),
    "key-not-a-number": Meaning(
        "The key is not a full match of [0-9]{1,11}: a word, spaces, a sign, a binary integer.",
        'Send it as ASCII digits: b"1896091200", not a serialized long.',
    ),
    "key-negative": Meaning(
        "The key is a negative number.",
        "Send a time after 1970. A timer for a time in the past fires at once.",
    ),
    "key-in-milliseconds": Meaning(
        "The key has 12 to 14 digits. The error message gives the value in seconds.",
        "Divide by 1000 and round up.",
    ),
    "value-missing": Meaning(
        "The record has no value (a tombstone).",
        "A tombstone does not cancel a timer without an id.",
    ),
    "value-not-a-future": Meaning(
        "The value is not a protobuf Future: it has another format, or the serializer of a schema registry put bytes "
        "before it.",
        "Serialize timers.v1.Future without a wrapper; timers schedule sends a correct one. Or name the callback topic "
        "in the header timer-topic: then the value is the payload, without protobuf.",
    ),
    "value-too-large": Meaning(
        "The value is larger than TIMERS_MAX_REQUEST_BYTES. The dead letter has the first 4,096 bytes of the value, "
        "its length (timer-value-bytes) and its hash (timer-value-sha256).",
        "Send a reference instead, or raise that setting and the limits of the topics.",
    ),
    "topic-missing": Meaning(
        "The callback topic is missing or empty.",
        "Name a topic.",
    ),
    "topic-invalid": Meaning(
        "The callback topic is not a legal topic name.",
        "Use 1 to 249 of a-z A-Z 0-9 . _ -.",
    ),
    "level-too-low": Meaning(
        "The record has the header timer-topic, so it is a request without protobuf, but its partition does not read "
        "these yet.",
        "Allow a higher feature level, then retry.",
    ),
    "topic-unknown": Meaning(
        "The callback topic does not exist when the timer is due.",
        "Create it and retry, or set TIMERS_CREATE_TARGET_TOPICS=1.",
    ),
    "topic-denied": Meaning(
        "The topic belongs to the engine or to Kafka, or its name has the form of such a topic, as *-progress has; or "
        "a setting denies the topic; or the callback is a request that is not allowed; or an ACL refused all attempts.",
        "Allow the topic, by its full name if that form is internal, and retry. The worker needs Write on it.",
    ),
    "message-too-large": Meaning(
        "The callback does not fit in the topic's max.message.bytes. The error message gives both sizes.",
        "Raise the limit and retry.",
    ),
    "message-refused": Meaning(
        "A broker refused this one record, for example one without a key in a compacted topic. The error message "
        "has the broker's reason. Or the topic takes no record that is a second old "
        "(message.timestamp.before.max.ms).",
        "Request a callback that the topic takes, or change the topic and retry.",
    ),
    "target-failing": Meaning(
        "The topic did not take the callback, and TIMERS_RETRY_ATTEMPTS retries failed too. The error message has the "
        "last error.",
        "Repair the target and retry.",
    ),
    "lost-from-log": Meaning(
        "The request topic lost this record after it was accepted, and an operator accepted the loss. Only the store "
        "of a worker still held the timer, or the cancel.",
        "Retry it. With an id, it replaces what was set under the same id since the loss.",
    ),
    "retry-headers-missing": Meaning(
        "The record is on the retry topic, but no worker wrote it.",
        "Allow only workers to write there.",
    ),
    "id-missing": Meaning(
        "A record on TIMERS_ID_TOPIC or on a topic of TIMERS_SCHEDULE_TOPICS has no key, so it has no id. Or a "
        "countdown is cancelled without an id, or has an empty id.",
        "Send the id as key.",
    ),
    "id-too-long": Meaning(
        "The id has more than 512 bytes, or that of a schedule more than 32 KiB.",
        "Send a hash of it.",
    ),
    "id-not-text": Meaning(
        "The id is not UTF-8, so no verdict could name it. Or the id of a countdown is not a string, or holds half a "
        "surrogate pair.",
        "Send it as text, such as hexadecimal.",
    ),
    "due-missing": Meaning(
        "A timer with an id has no header timer-due, or a schedule no scheduler-epoch.",
        "Send the due epoch second in this header, in ASCII digits. A wrong value gets the same code as a wrong key.",
    ),
    "condition-invalid": Meaning(
        "The header timer-if is neither absent nor a source, or a cancel has absent in it.",
        "Send absent, or the source of the version that the change was made for.",
    ),
    "condition-without-id": Meaning(
        "A record on timer-request has the header timer-if, but its timer has no id.",
        "Send it to the topic of TIMERS_ID_TOPIC, with the id as key.",
    ),
    "condition-without-append-time": Meaning(
        "A record with the header timer-if has the time of its producer, not of the broker.",
        "Give the topic message.timestamp.type=LogAppendTime. A worker sets it at its start.",
    ),
    "promotion-invalid": Meaning(
        "A record has the headers timer-promoted and timer-seal of a timer from the cold tier, but this "
        "partition did not send that timer there.",
        "Do not copy these headers. If the request topic or the progress topic was created again, the cold "
        "timers of the former topic become dead letters; request them again.",
    ),
    "value-not-json": Meaning(
        "The value of a record on TIMERS_COUNTDOWN_TOPIC is not a JSON object in UTF-8, or has more than 100 "
        "nested arrays and objects. The error message says where.",
        'Send {"topic": "orders", "message": "...", "countdown": 120}.',
    ),
    "field-missing": Meaning(
        "topic, message or countdown is missing.",
        "Send all three.",
    ),
    "field-repeated": Meaning(
        "A field is there twice: JSON does not define which one counts.",
        "Send it once.",
    ),
    "field-invalid": Meaning(
        "topic is not a string, cancel is not true or false, or message holds half a surrogate pair.",
        "The error message names the field and the expected form: send it in this form.",
    ),
    "countdown-invalid": Meaning(
        "The countdown is not a number, is negative, or ends after the year 5138.",
        "Send seconds, as a number: 120, 0.5.",
    ),
    "time-missing": Meaning(
        "The record has no timestamp, from which the countdown or the lease would start.",
        "Give the topic message.timestamp.type=LogAppendTime.",
    ),
    "id-not-key": Meaning(
        "A countdown has an id that is not the key of its record.",
        "Send the id as key, too: the key keeps all records of an id on one partition.",
    ),
    "overdue": Meaning(
        "The epoch of a schedule is before the timestamp of its own record, with TIMERS_SCHEDULE_OVERDUE=reject.",
        "Set a later epoch, or set TIMERS_SCHEDULE_OVERDUE=fire.",
    ),
    "value-not-a-marker": Meaning(
        "The value of a record on TIMERS_MARKER_TOPIC is not a protobuf Marker of kafka-mq-go.",
        "Let only its consumers write there.",
    ),
    "marker-invalid": Meaning(
        "A marker has an unknown version or type, no message_id, a negative partition or offset, or a lease that "
        "ends after the year 5138. The error message names the field.",
        "Let only consumers of kafka-mq-go write there.",
    ),
    "rejected": Meaning(
        "The receiver called reject; the error message says why. Or the brokers refused the retry of the message, or "
        "one of its outputs. If they refused the dead letter itself, it is truncated.",
        "Correct the topic of the output and put the message back with timers queue redrive, or send a "
        "correct message.",
    ),
    "attempts-exhausted": Meaning(
        "The receiver called retry after the largest number of retries (Backoff(retries=)), or the lease of the "
        "last attempt ended. The error message has the last error.",
        "Repair the cause, and put the message back with timers queue redrive.",
    ),
    "crashed": Meaning(
        "The process of the queue, or a child process of run(processes=), ended twice while its handler "
        "worked on this message alone.",
        "Look for the reason in the log: memory, a native library. Then put the message back.",
    ),
    "unsigned": Meaning(
        "A record on the topic of returns is not signed by the queue: a requester wrote it, or the key was lost with "
        "the ledger topic. The error message says what does not fit.",
        "Put it back with timers queue redrive --code unsigned only if it is a message of the queue; see signed "
        "returns.",
    ),
    "retries-exhausted": Meaning(
        "A receiver gave up the message after all its attempts.",
        "Repair the cause, and retry.",
    ),
}
"""Code -> its meaning."""
