"""Sets, finds, moves and cancels a timer with the generated client: `python program.py URL TOPIC`."""

import sys

from timers_client import AuthenticatedClient
from timers_client.api.timers import cancel_timer, get_timer, list_timers, move_timer, put_timer, set_timer
from timers_client.api.workers import workers
from timers_client.models import Accepted, FoundTimers, NewTimer, Problem, TimerList, TimerMove, TimerVersion, Verdict
from timers_client.models import Workers as AllWorkers

url, topic = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token="any: this console has no logins")

put = put_timer.sync(client=client, id="generated-1", body=TimerVersion(topic=topic, value="unpaid", delay="1h"))
assert isinstance(put, (Accepted, Verdict)), put
found = get_timer.sync(client=client, id="generated-1")
assert isinstance(found, FoundTimers) and found.timers[0].topic == topic, found
moved = move_timer.sync(client=client, id="generated-1", body=TimerMove(delay="2h"))
assert isinstance(moved, (Accepted, Verdict)), moved
listed = list_timers.sync(client=client, topic=topic)
assert isinstance(listed, TimerList) and listed.complete and len(listed.timers) == 1, listed
cancelled = cancel_timer.sync(client=client, id="generated-1")
assert isinstance(cancelled, Verdict) and cancelled.verdict == "cancelled", cancelled
refused = set_timer.sync(client=client, body=NewTimer(topic="no topic", value="x", delay="1h"))
assert isinstance(refused, Problem) and refused.code, refused
seen = workers.sync(client=client)
assert isinstance(seen, AllWorkers) and seen.workers[0].ready, seen
print("done")
