"""A rolling update of the shipped StatefulSet: the next pod is replaced when the probes say that this one is ready."""

import signal
import time

import pytest

from tests.deploy.chart import last_rendered
from tests.harness.scrape import health
from tests.harness.system import PARTITIONS, System, timers
from tests.harness.waiting import due_in
from tests.harness.worker import Worker

pytestmark = [pytest.mark.broker, pytest.mark.long]

STATEFUL_SET = last_rendered("workers")["StatefulSet", "timers"]["spec"]
POD = STATEFUL_SET["template"]["spec"]
(CONTAINER,) = POD["containers"]
SECONDS, PER_S = 60, 40


class SimKubelet:
    """Starts, probes and ends the pods of the StatefulSet, as its controller and the kubelet do."""

    def __init__(self, system: System) -> None:
        self.pods = [system.worker(forked=False) for _ in range(STATEFUL_SET["replicas"])]

    def start(self) -> None:
        """Start all pods; with ``Parallel`` they do not wait for one another."""
        assert STATEFUL_SET["podManagementPolicy"] == "Parallel"
        for pod in self.pods:
            pod.start()
        for pod in self.pods:
            self.probe(pod)

    def update(self) -> None:
        """Replace each pod, the one with the highest number first. Its name and its disk stay."""
        assert STATEFUL_SET["updateStrategy"]["type"] == "RollingUpdate"
        for pod in reversed(self.pods):
            pod.send(signal.SIGTERM)
            assert pod.exit_code(POD["terminationGracePeriodSeconds"]) == 0, "it would be killed"
            pod.start()
            self.probe(pod)
            fired = {name for each in self.pods for name in health(each.port, "partitions")[1]["firing"]}
            assert len(fired) == 2 * PARTITIONS, "the next pod is replaced only when all partitions fire again"

    @staticmethod
    def probe(pod: Worker) -> None:
        """Wait until the pod has started and is ready, as its probes say."""
        for name in ("startupProbe", "readinessProbe"):
            probe = CONTAINER[name]
            path = probe["httpGet"]["path"].removeprefix("/health/")
            failures = 0
            while not SimKubelet._succeeds(pod, path):
                failures += 1
                assert name != "startupProbe" or failures < probe["failureThreshold"], "it would be restarted"
                assert failures < 100, f"it does not become ready: {health(pod.port, path)}"
                time.sleep(probe["periodSeconds"])

    @staticmethod
    def _succeeds(pod: Worker, path: str) -> bool:
        try:
            return health(pod.port, path)[0] == 200
        except OSError:
            return False


def test_a_rolling_update_goes_on_only_when_all_partitions_fire_again(system: System) -> None:
    kubelet = SimKubelet(system)
    kubelet.start()
    target = system.target()
    requests = timers(target, SECONDS * PER_S, due_in(5), SECONDS)
    for number, request in enumerate(requests):
        request.partition = number // SECONDS % PARTITIONS
    system.send(*requests)
    kubelet.update()
    system.fired(requests)
    for pod in kubelet.pods:
        assert "Traceback" not in pod.log
