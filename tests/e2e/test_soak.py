"""Many faults in a row, and two at once: the job ends with the weights of the undisturbed run."""

import random

import pytest

from tests.e2e.conftest import Bench

pytestmark = pytest.mark.campaign

LONG = {"steps": 700, "save_every": 20}
FAULTS = ["xid79", "spot", "terminate", "kill-rank", "xid79", "reboot-order", "terminate", "kill-rank"]
SEED = 7


def test_a_job_survives_many_faults_bit_for_bit(bench: Bench) -> None:
    bench.submit("calm", **LONG)
    expected = bench.final("calm", 300)
    bench.submit("stormy", **LONG)
    chance = random.Random(SEED)
    names = ["e2e-1", "e2e-2", "e2e-3", "e2e-4"]
    for number, fault in enumerate(FAULTS):
        bench.train_to("stormy", 21 + 20 * number)
        before = int((bench.gw.jobs.job("stormy") or {})["attempt"])
        name = chance.choice(names)
        if fault == "reboot-order":
            document = {"node_id": bench.node(name), "action": "reboot", "reason": "soak"}
            bench.gw.workflows.start("heal_node", f"soak-{number}", document)
        else:
            bench.inject(fault, name)
        bench.resumed("stormy", before, 120)
    before = int((bench.gw.jobs.job("stormy") or {})["attempt"])
    bench.inject("xid79", "e2e-1")
    bench.inject("terminate", "e2e-4")
    bench.resumed("stormy", before, 120)
    assert bench.final("stormy", 300)["weights_sha256"] == expected["weights_sha256"]
    bench.until("end of every incident", lambda: all("outcome" in row for row in bench.gw.ledger.incidents()))
    ends = {row.get("outcome") for row in bench.gw.ledger.incidents()}
    assert "ESCALATED" not in ends
    assert len(bench.instances()) == 4
