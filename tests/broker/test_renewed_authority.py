"""The brokers get certificates of another authority under a running worker, whose file gets both authorities before."""

import json
from pathlib import Path

import pytest
import trustme

from tests.harness import acls
from tests.harness.acls import worker_acls
from tests.harness.logins import PASSWORD, USER, login
from tests.harness.scrape import get
from tests.harness.secure import secure_broker
from tests.harness.system import System, soon
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.broker


def test_a_worker_asks_about_topics_after_its_brokers_have_another_authority(tmp_path: Path) -> None:
    """aiokafka's clients read the file again by themselves; those of librdkafka would be blind from here on."""
    with secure_broker(tmp_path / "broker", {USER: PASSWORD}) as broker:
        authorities = tmp_path / "authorities.pem"
        authorities.write_bytes(broker.certificates.ca.read_bytes())
        system = System(broker.address, tmp_path)
        system.environment |= login(broker, TIMERS_SSL_CA_FILE=str(authorities))
        system.create_own_topics()
        known = system.target()
        acls.add(system.admin, worker_acls(system.settings, USER, known))
        worker = system.worker().start().ready()
        system.send(*soon(known, 5))
        assert len(system.reader(known).take(5)) == 5

        authority = trustme.CA()
        both = tmp_path / "both.pem"
        both.write_bytes(broker.certificates.ca.read_bytes() + authority.cert_pem.bytes())
        both.replace(authorities)
        broker.stop()
        broker.sign_anew(authority)
        broker.start()
        worker.ready()

        new = system.target()
        acls.add(system.admin, acls.acl(acls.TOPIC, new, acls.WRITE, principal=f"User:{USER}"))
        system.send(*soon(new, 5))
        assert len(system.reader(new).take(5)) == 5, "a callback topic that it must ask about"
        other = system.worker().start().ready()
        other.stop()
        system.send(*soon(known, 5))
        assert len(system.reader(known).take(10)) == 10, "its partitions come back, and are opened"
        system.delete_topic(system.settings.dead_letter_topic)

        def reasons() -> list[str]:
            return list(json.loads(get(worker.port, "/health/ready")[1])["reasons"])

        wait_until(lambda: any("lacks Create" in each or "lacks at" in each for each in reasons()), "it sees it")
        system.close()
