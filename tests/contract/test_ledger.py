"""The claim protocol (design: one active incident per node) on the memory twin and on DynamoDB (moto)."""

import threading

import pytest

from planaria.core.breaker import Breaker, allowed
from planaria.core.claim import Claim
from planaria.core.errors import Fenced
from planaria.core.incident import Phase, Step
from planaria.core.job_ledger import JobLedger
from planaria.core.ledger import Ledger
from planaria.core.ports import Table
from planaria.core.table import Conflict, Row

NODE = "i-0123456789abcdef0"
NOW = 1_793_610_845.0


@pytest.fixture
def ledger(table: Table) -> Ledger:
    return Ledger(table)


def claim(claim_id: str = "event-1", action: str = "REPLACE") -> Claim:
    return Claim(NODE, claim_id, action, "why", "rule", "act", NOW - 1, {"kind": "xid", "code": "79"})


def test_a_claim_opens_a_session_named_by_its_time(ledger: Ledger) -> None:
    row = ledger.claim(claim(), None, NOW)
    assert (row["session"], row["phase"], row["attempt"]) == (int(NOW * 1000), "CLAIMED", 1)
    assert row["execution"] == f"heal-{NODE}-{int(NOW * 1000)}-1"
    assert len(row["execution"]) <= 80
    head, _ = ledger.incident(f"{NODE}-{row['session']}")
    assert head is not None and head["rule"] == "rule"


def test_the_sdks_own_retry_of_a_claim_is_success(ledger: Ledger) -> None:
    first = ledger.claim(claim(), None, NOW)
    assert ledger.claim(claim(), None, NOW + 5) == first


def test_a_second_claimant_loses(ledger: Ledger) -> None:
    ledger.claim(claim(), None, NOW)
    with pytest.raises(Conflict):
        ledger.claim(claim("event-2"), None, NOW)
    with pytest.raises(Conflict):
        ledger.claim(claim("event-2"), ledger.node(NODE), NOW)


def test_of_many_concurrent_claimants_one_wins(shared_table: Table) -> None:
    ledger = Ledger(shared_table)
    won: list[str] = []

    def compete(number: int) -> None:
        try:
            ledger.claim(claim(f"event-{number}"), None, NOW)
            won.append(f"event-{number}")
        except Conflict:
            pass

    threads = [threading.Thread(target=compete, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [(ledger.node(NODE) or {})["claim_id"]]
    assert len(ledger.incidents()) == 1


def test_every_write_is_fenced_by_the_session(ledger: Ledger) -> None:
    session = ledger.claim(claim(), None, NOW)["session"]
    ledger.write(NODE, session, sets={"x": 1})
    with pytest.raises(Fenced):
        ledger.write(NODE, session - 1, sets={"x": 2})
    assert ledger.close(NODE, session, Phase.HEALED, NOW + 9)
    for late in (lambda: ledger.write(NODE, session, sets={"x": 3}), lambda: ledger.enter(NODE, session)):
        with pytest.raises(Fenced):
            late()
    assert (ledger.node(NODE) or {})["x"] == 1
    assert not ledger.close(NODE, session, Phase.ESCALATED, NOW + 10)
    head, _ = ledger.incident(f"{NODE}-{session}")
    assert head is not None and (head["outcome"], head["closed_at"]) == ("HEALED", NOW + 9)


def test_a_superseding_session_inherits_open_intents_and_ends_the_old_one(ledger: Ledger) -> None:
    old = ledger.claim(claim(action="REBOOT"), None, NOW)["session"]
    intents = {"isolation": {"mark": "m"}, "launch": {"token": "t"}, "waiting": {"token": "w"}}
    ledger.write(NODE, old, sets={"execution_arn": "arn:old", **intents})
    new = ledger.claim(claim("event-2"), ledger.node(NODE), NOW, raises=True)
    assert new["session"] == old + 1  # same millisecond: previous + 1
    assert (new["isolation"], new["launch"], "waiting" in new) == ({"mark": "m"}, {"token": "t"}, False)
    assert ledger.end_superseded(new, NOW) == ledger.end_superseded(new, NOW) == "arn:old"
    head, _ = ledger.incident(f"{NODE}-{old}")
    assert head is not None and head["outcome"] == "SUPERSEDED"
    with pytest.raises(Fenced):
        ledger.enter(NODE, old)


def test_a_fresh_session_does_not_inherit_a_launch(ledger: Ledger) -> None:
    old = ledger.claim(claim(), None, NOW)["session"]
    ledger.write(NODE, old, sets={"launch": {"token": "t"}, "replacement_id": "i-1"})
    ledger.close(NODE, old, Phase.ESCALATED, NOW)
    new = ledger.claim(claim("event-2"), ledger.node(NODE), NOW - 100)  # the clock went back
    assert new["session"] == old + 1
    assert "launch" not in new and "replacement_id" not in new


def test_the_first_note_of_a_step_stays(ledger: Ledger) -> None:
    ledger.step("x", Step.ISOLATED, 5.0)
    ledger.step("x", Step.ISOLATED, 9.0)
    assert [(row["step"], row["at"]) for row in ledger.incident("x")[1]] == [("isolated", 5)]


def test_outcomes_expire(ledger: Ledger) -> None:
    ledger.record_outcome("key", NOW, {"outcome": "OPENED"})
    assert (ledger.outcome("key", NOW + 86_400) or {})["outcome"] == "OPENED"
    assert ledger.outcome("key", NOW + 31 * 86_400) is None
    assert ledger.outcome("other", NOW) is None


def test_the_breaker_allows_its_cap_and_no_more_whatever_the_race(shared_table: Table) -> None:
    breaker = Breaker(shared_table, allowed(5, 0.5, 8), 60.0)  # min(5, 4) = 4
    admitted: list[str] = []

    def ask(number: int) -> None:
        if breaker.admit(f"incident-{number}", "kernel", NOW) == "":
            admitted.append(f"incident-{number}")

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while len(admitted) < 4:  # a refusal "its row changes too fast" is judged anew
        ask(100 + len(admitted))
    assert len(admitted) == 4
    assert "4 of 4 removals" in breaker.admit("late", "kernel", NOW)
    assert breaker.admit(admitted[0], "kernel", NOW) == ""  # asked twice, counted once
    breaker.release(admitted[0], "kernel")
    assert breaker.admit("late", "kernel", NOW) == ""
    assert "half-open: waits for incident late" in breaker.admit("later", "kernel", NOW + 61)


@pytest.mark.parametrize(
    ("cap", "share", "size", "removals"),
    [(4, 0.25, 1, 1), (4, 0.25, 4, 1), (4, 0.25, 8, 2), (4, 0.25, 1000, 4)],
)
def test_a_small_fleet_may_always_heal_one(cap: int, share: float, size: int, removals: int) -> None:
    assert allowed(cap, share, size) == removals


NODES = [f"i-{n:017x}" for n in range(4)]


def settled(jobs: JobLedger, *told: str | None) -> Row:
    row = jobs.settle(*told)  # type: ignore[arg-type]
    assert row is not None
    return row


def test_a_job_with_two_failing_nodes_is_resumed_once_when_both_are_settled(table: Table) -> None:
    jobs = JobLedger(table)
    jobs.register("gpt", ["n0", "n1", "n2", "n3"], NODES, {})
    for node in NODES[:2]:
        jobs.wait_for("gpt", node, f"{node}-1")
    row = settled(jobs, "gpt", NODES[0], f"{NODES[0]}-1", "i-aaaaaaaa", "")
    with pytest.raises(Conflict):
        jobs.claim_resume(row, "first", "r", NOW, supersede=True)
    row = settled(jobs, "gpt", NODES[1], f"{NODES[1]}-1", "i-bbbbbbbb", "")
    assert list(row["nodes"].values()) == ["i-aaaaaaaa", "i-bbbbbbbb", *NODES[2:]]
    claimed = jobs.claim_resume(row, "second", "r", NOW, supersede=True)
    assert claimed["resume_number"] == 1
    assert jobs.claim_resume(row, "second", "r", NOW, supersede=True)["resume_number"] == 1
    again = settled(jobs, "gpt", NODES[1], f"{NODES[1]}-1", "i-bbbbbbbb", "")
    assert again["nodes"] == row["nodes"]
    with pytest.raises(Conflict):
        jobs.claim_resume(claimed, "third", "r", NOW, supersede=False)


def test_an_unresolved_node_holds_the_job_until_its_place_is_healed(table: Table) -> None:
    jobs = JobLedger(table)
    jobs.register("gpt", ["n0"], NODES[:1], {})
    jobs.wait_for("gpt", NODES[0], "a")
    row = settled(jobs, "gpt", NODES[0], "a", None, "no capacity")
    with pytest.raises(Conflict):
        jobs.claim_resume(row, "c", "r", NOW, supersede=True)
    jobs.wait_for("gpt", NODES[0], "b")
    row = settled(jobs, "gpt", NODES[0], "b", "i-cccccccc", "")
    assert jobs.claim_resume(row, "c", "r", NOW, supersede=True)["resume_number"] == 1
