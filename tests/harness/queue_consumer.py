"""A consumer of a queue that settles some messages, says so, and waits to be killed."""

import sys
import time

from timers.queue import Message, Queue


def main(topic: str, count: int) -> None:
    """Receive ``count`` messages; of their numbers acknowledge those that 3 divides, retry or reject those that 10
    divides, in an order other than that of the log."""
    queue = Queue(topic, lease_s=600, timeout_s=60)
    messages: list[Message] = []
    while len(messages) < count:
        messages += queue.receive(count - len(messages))
    for message in reversed(messages):
        number = int(message.value or b"")
        if number % 20 == 0:
            message.reject(f"{number} is rejected")
        elif number % 10 == 0:
            message.retry(after=1)
        elif number % 3 == 0:
            message.ack()
    queue.settle()
    print("settled", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
