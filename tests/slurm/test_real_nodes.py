"""isolate, lost, readmit, join, hold and place on a real Slurm."""

import time

import pytest

from planaria.slurm import isolation, joining, nodes, placing, telling
from planaria.slurm.holding import held, hold
from planaria.slurm.isolation import Entry
from planaria.slurm.stopping import stop
from tests.sandbox.heads import eventually
from tests.slurm.conftest import NAMES, SPARE, Real

pytestmark = pytest.mark.campaign

A, B, C = NAMES[:3]
MARK = "planaria:i-1.5"


def isolate(real: Real, name: str, reason: str = MARK) -> str:
    return isolation.isolate(real.slurm, [Entry(name, reason)])[name]


def readmit(real: Real, name: str, reason: str = MARK) -> str:
    return isolation.readmit(real.slurm, [Entry(name, reason)])[name]


def test_our_isolation_is_noted_beside_what_others_wrote(real: Real) -> None:
    real.update(f"NodeName={A}", "Comment=rack 7; lr=0.1")
    assert isolate(real, A) == "ISOLATED"
    node = nodes.read(real.slurm, [A])[A]
    assert node.mark == {"reason": MARK, "by": node.reason_by, "at": str(node.reason_at)}
    assert node.comment.startswith("rack 7; lr=0.1 planaria?")
    orders = len(real.orders)
    assert isolate(real, A) == "ISOLATED"
    assert len(real.orders) == orders, "asked twice nothing is written"
    assert readmit(real, A) == "READMITTED"
    assert nodes.read(real.slurm, [A])[A].comment == "rack 7; lr=0.1"
    assert readmit(real, A) == "READMITTED", "already idle is success"


@pytest.mark.parametrize("state", ["DRAIN", "DOWN", "FAIL"])
def test_what_an_operator_keeps_out_is_not_written_to(real: Real, state: str) -> None:
    real.update(f"NodeName={A}", f"State={state}", "Reason=new disks = 2")
    before = real.node(A)
    entries = [Entry(A, MARK)]
    assert isolation.isolate(real.slurm, entries) == {A: "FOREIGN: new disks = 2"}
    assert isolation.lost(real.slurm, entries) == {A: "FOREIGN: new disks = 2"}
    assert isolation.readmit(real.slurm, entries) == {A: "FOREIGN: new disks = 2"}
    assert real.orders == []
    assert real.node(A).partition("Reason=")[2] == before.partition("Reason=")[2]


def test_an_operator_who_comes_after_us_keeps_the_node(real: Real) -> None:
    assert isolate(real, A) == "ISOLATED"
    real.update(f"NodeName={A}", "State=DRAIN", f"Reason={MARK} keep it, ask ops")
    assert readmit(real, A) == f"FOREIGN: {MARK} keep it, ask ops"
    assert "DRAIN" in real.node(A)


def test_our_words_written_by_somebody_later_are_theirs(real: Real) -> None:
    assert isolate(real, A) == "ISOLATED"
    time.sleep(1.1)  # Slurm keeps whole seconds
    real.update(f"NodeName={A}", "State=DOWN", f"Reason={MARK}")
    assert readmit(real, A) == f"FOREIGN: {MARK}, set again by root"


def test_what_slurm_itself_took_out_is_taken_over(real: Real) -> None:
    real.update(f"NodeName={A}", "State=DRAIN", "Reason=Kill task failed")
    real.update(f"NodeName={B}", "State=DOWN", "Reason=Not responding")
    assert readmit(real, A) == "FOREIGN: Kill task failed", "we have not isolated it"
    found = isolation.isolate(real.slurm, [Entry(A, MARK), Entry(B, MARK)])
    assert found == {A: "ISOLATED", B: "ISOLATED"}
    real.update(f"NodeName={A}", "State=DRAIN", "Reason=Prolog error")
    assert readmit(real, A) == readmit(real, B) == "READMITTED"
    assert telling.tell_nodes(real.slurm, [A])[A]["state"] == "IDLE"


def test_a_prolog_that_fails_is_told_of_and_the_job_that_it_held_is_let_go(real: Real) -> None:
    broken = real.cluster.places.folder / f"broken-{A}"
    broken.touch()
    began = time.time()
    try:
        job = real.submit("sleep 100", "-N1", f"--nodelist={A}", wait=False)
        eventually(lambda: A in telling.tell_nodes(real.slurm, []), 30.0, "Slurm has drained the node")
    finally:
        broken.unlink()
    told = telling.tell_nodes(real.slurm, [])[A]
    assert (told["state"], told["reason"], told["codes"]) == (
        "DRAINED", "Prolog error", ["Slurm/PrologError"],
    )  # fmt: skip
    assert began - 2 < told["since"] <= time.time() + 1
    assert nodes.read(real.slurm, [A])[A].reason_by == "root", "as SlurmUser, who runs slurmctld here"
    assert real.facts(job)["Reason"] == "launch_failed_requeued_held"
    assert readmit(real, A) == "FOREIGN: Prolog error"
    assert isolate(real, A) == "ISOLATED"
    assert telling.tell_nodes(real.slurm, []) == {}
    assert readmit(real, A) == "READMITTED"
    assert real.facts(job)["Priority"] != "0", "it may run now, though nobody had stopped it"


def test_a_node_with_fewer_devices_than_configured_is_not_readmitted_before_they_are_back(real: Real) -> None:
    gres, folder = real.cluster.places.folder / "gres.conf", real.cluster.places.folder
    whole = gres.read_text()
    try:
        others = ",".join(name for name in (*NAMES, SPARE) if name != A)
        gres.write_text(
            f"AutoDetect=off\nNodeName={others} Name=gpu File={folder}/gpus/gpu[0-7]\n"
            f"NodeName={A} Name=gpu File={folder}/gpus/gpu[0-5]\n"
        )
        real.cluster.boot(A)
        eventually(lambda: A in telling.tell_nodes(real.slurm, []), 30.0, "Slurm has drained the node")
        told = telling.tell_nodes(real.slurm, [])[A]
        assert told["reason"] == "gres/gpu count reported lower than configured (6 < 8)"
        assert (told["codes"], told["words"]) == (["Slurm/GresCount"], "IDLE+DRAIN+INVALID_REG")
        assert isolate(real, A) == "ISOLATED"
        assert readmit(real, A).startswith("UNKNOWN: slurm_update error: Invalid node state")
    finally:
        gres.write_text(whole)
    real.cluster.boot(A)
    eventually(lambda: readmit(real, A) == "READMITTED", 30.0, "the node has registered with all of them")
    assert telling.tell_nodes(real.slurm, [A])[A]["reason"] == ""


@pytest.mark.parametrize(
    "reason", ["Not responding to my bmc, keep out -- ada", "Kill task failed twice, RMA"]
)
def test_a_persons_reason_may_begin_like_slurms(real: Real, reason: str) -> None:
    real.update(f"NodeName={A}", "State=DRAIN", f"Reason={reason}")
    assert isolate(real, A) == readmit(real, A) == f"FOREIGN: {reason}"
    assert real.orders == []


def test_a_lost_node_is_drained_before_it_is_down_and_frees_its_job_at_once(real: Real) -> None:
    job = real.submit("srun sleep 100", "-N2", f"--nodelist={A},{B}")
    real.cluster.kill_node(B)
    began = time.monotonic()
    assert isolation.lost(real.slurm, [Entry(B, MARK)]) == {B: "ISOLATED"}
    changes = [word for order in real.orders for word in order if word.startswith("State=")]
    assert changes == ["State=DRAIN", "State=DOWN"]
    over = ("PENDING", "FAILED", "NODE_FAIL")  # FAILED where srun saw the loss before Slurm was told of it
    eventually(lambda: real.state(job) in over, 90.0, "nothing of the job is left")
    assert time.monotonic() - began < 100.0, "SlurmdTimeout (300 s) was not waited for"
    eventually(lambda: stop(real.slurm, [job], "TERM", 1.0) == {job: "STOPPED"}, 60.0)
    assert real.state(job) == "PENDING"
    node = telling.tell_nodes(real.slurm, [B])[B]
    assert (node["state"], node["jobs"]) == ("DOWN", [])
    assert telling.tell_jobs(real.slurm, [job], [])[job]["restarts"] == 1  # type: ignore[index]


def test_an_instance_takes_a_name_with_its_address(real: Real) -> None:
    assert joining.join(real.slurm, A, "i-new", "127.0.0.9", MARK) == {A: "JOINED"}
    shown = real.node(A)
    assert "NodeAddr=127.0.0.9 " in shown
    assert "NodeHostName=ip-127-0-0-9 " in shown
    assert "State=IDLE+DRAIN" in shown
    real.cluster.boot(A)
    real.cluster.wait_for_node(A)
    assert readmit(real, A) == "READMITTED"
    found = telling.tell_nodes(real.slurm, [A])[A]
    assert (found["node_id"], found["state"]) == ("i-new", "IDLE")
    job = real.submit("srun sleep 100", "-N2", f"--nodelist={A},{B}")
    assert telling.tell_jobs_on(real.slurm, [A]) == {A: [job]}, "it works at its new address"
    assert joining.join(real.slurm, A, "i-new", "127.0.0.9", MARK) == {A: "JOINED"}
    assert joining.join(real.slurm, A, "i-other", "", MARK) == {A: f"BUSY: ranks of {job} still run on i-new"}
    assert joining.join(real.slurm, B, "i-new", "", MARK) == {B: f"BUSY: i-new is {A} already"}


def test_a_node_that_does_not_answer_is_not_readmitted_yet(real: Real) -> None:
    assert joining.join(real.slurm, A, "i-new", "", MARK) == {A: "JOINED"}
    real.cluster.kill_node(A)
    real.update(f"NodeName={A}", "State=DOWN", "Reason=Not responding")
    assert readmit(real, A) == f"UNKNOWN: {A} does not answer slurmctld yet"
    real.cluster.boot(A)
    real.cluster.wait_for_node(A)
    eventually(lambda: readmit(real, A) == "READMITTED", 30.0)
    assert telling.tell_nodes(real.slurm, [A])[A]["state"] == "IDLE"


def test_an_address_survives_a_reconfiguration(real: Real) -> None:
    """slurmctld then takes all addresses from slurm.conf again."""
    assert joining.join(real.slurm, A, "i-new", "127.0.0.9", MARK) == {A: "JOINED"}
    real.cluster.kill_node(A)
    real.cluster.run("scontrol", "reconfigure")
    assert "NodeAddr=127.0.0.1 " in real.node(A)
    real.update(f"NodeName={A}", "State=DOWN", f"Reason={MARK}")
    telling.tell_nodes(real.slurm, [A])
    assert "NodeAddr=127.0.0.9 " in real.node(A)
    real.update(f"NodeName={A}", "NodeAddr=127.0.0.8")
    telling.tell_jobs(real.slurm, [], [])
    assert "NodeAddr=127.0.0.8 " in real.node(A), "somebody has put it there"
    real.update(f"NodeName={A}", "NodeAddr=127.0.0.1", "State=DOWN", "Reason=ada: new hardware")
    telling.tell_nodes(real.slurm, [A])
    assert "NodeAddr=127.0.0.1 " in real.node(A), "and what somebody holds is not touched"


def test_a_name_of_later_keeps_our_isolation_when_it_registers(real: Real) -> None:
    """Slurm 22.05 then drops the reason of a FUTURE node, and keeps it drained."""
    try:
        assert joining.join(real.slurm, SPARE, "i-0ff", "", MARK) == {SPARE: "JOINED"}
        real.cluster.boot(SPARE)
        real.cluster.wait_for_node(SPARE)
        assert readmit(real, SPARE) == "READMITTED"
        assert telling.tell_nodes(real.slurm, [SPARE])[SPARE]["state"] == "IDLE"
    finally:
        real.cluster.kill_node(SPARE)
        real.update(f"NodeName={SPARE}", "State=FUTURE")


def test_a_name_that_slurm_does_not_know_is_told_of(real: Real) -> None:
    word = joining.join(real.slurm, "demo-99", "i-x", "", MARK)["demo-99"]
    assert word.startswith("BUSY: Slurm has no node demo-99; add it to slurm.conf")
    assert nodes.read(real.slurm, [SPARE])[SPARE].words.base == "FUTURE"


def test_a_hold_is_for_the_job_alone_and_the_newer_counts(real: Real) -> None:
    job = real.submit("srun sleep 100", "-N2", "--exclusive", "--time=1-0")
    mine = telling.tell_jobs(real.slurm, [job], [])[job]
    assert mine is not None
    assert hold(real.slurm, job, [*mine["nodes"], C], 120.0) == {job: "HELD"}
    other = real.submit("sleep 100", f"-N{len(NAMES)}", "--exclusive", wait=False)
    assert placing.place(real.slurm, other, 9)[other] == [
        name for name in NAMES if name not in {*mine["nodes"], C}
    ]
    assert placing.place(real.slurm, job, 3)[job] == [*mine["nodes"], C]
    real.cluster.run("scancel", job)
    time.sleep(4.0)
    assert real.state(other) == "PENDING", "the nodes are kept although nothing runs there"
    again = real.submit("srun sleep 100", "-N1", "--exclusive", f"--nodelist={NAMES[-1]}")
    assert hold(real.slurm, again, [NAMES[-1]], 60.0) == {again: "HELD"}
    assert hold(real.slurm, again, [NAMES[-1]], 1.0) == {again: "HELD"}
    eventually(lambda: f"planaria_{again}" not in held(real.slurm), 70.0, "a hold ends by its time")
    eventually(lambda: real.state(again) == "RUNNING", 5.0, "and not its job with it")
    assert hold(real.slurm, again, [], 0.0) == {again: "HELD"}
    assert hold(real.slurm, "999999", [A], 5.0) == {"999999": "UNKNOWN: no job 999999"}
    assert hold(real.slurm, again, ["demo-99"], 5.0) == {again: "UNKNOWN: no node demo-99"}
