"""Claims and the breaker under contention, and the SDK's own retries: memory, moto, the emulator.

moto answers from one process without a lock, so two conditional writes may both find their condition true:
there each call waits for its turn (`Turns`). What is between the calls of one claimant is open to all others
even so, which is where a protocol goes wrong; a short random wait before each call makes the most of it.
"""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from lambdas import sweep as sweeping
from lambdas.batch import Batch
from planaria import wiring
from planaria.aws.dynamodb import DynamoTable
from planaria.core.breaker import KEY, Breaker
from planaria.core.claim import Claim
from planaria.core.errors import Fenced
from planaria.core.incident import ACTIVE, Phase
from planaria.core.job_ledger import JobLedger
from planaria.core.ledger import Ledger
from planaria.core.ports import Table
from planaria.core.table import Changes, Condition, Conflict, Path, Row, equals
from planaria.memory.clock import MemoryClock
from planaria.memory.fleet import MemoryFleet
from planaria.memory.objects import MemoryObjects
from planaria.memory.queues import MemoryQueues
from planaria.memory.topology import MemoryTopology
from planaria.memory.workflows import MemoryBus, MemoryNotices, MemoryWorkflows
from planaria.wiring import Gateways
from tests.contract.conftest import world
from tests.lambdas import events
from tests.lambdas.world import RECEIVES, cluster

NODES = [f"i-{number:017x}" for number in range(4)]
NOW = 1_793_610_845.0
WINDOW = 3600.0
LONGEST_WAIT = 0.002
SQS_ATTEMPTS = 12
"""How often a claimant who lost comes back; each round one of them wins."""


class Turns:
    """A table of which each call is one step: nobody else's is between its beginning and its end. Whose turn
    is next is left to chance."""

    def __init__(self, table: Table) -> None:
        self._table, self._lock = table, threading.Lock()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        time.sleep(random.random() * LONGEST_WAIT)
        with self._lock:
            yield

    def get(self, pk: str, sk: str) -> Row | None:
        with self._turn():
            return self._table.get(pk, sk)

    def get_many(self, keys: Sequence[tuple[str, str]]) -> list[Row]:
        with self._turn():
            return self._table.get_many(keys)

    def write(
        self,
        pk: str,
        sk: str,
        sets: Changes | None = None,
        removes: Sequence[Path] = (),
        adds: Mapping[Path, int] | None = None,
        when: Condition | None = None,
        quiet: bool = False,
    ) -> Row:
        with self._turn():
            return self._table.write(pk, sk, sets, removes, adds, when, quiet)

    def query(self, pk: str) -> list[Row]:
        with self._turn():
            return self._table.query(pk)

    def listing(self, kind: str) -> list[Row]:
        with self._turn():
            return self._table.listing(kind)


@pytest.fixture(params=["memory", "moto", "emulator"])
def contended(request: pytest.FixtureRequest) -> Iterator[Table]:
    """For many writers at once."""
    for table in world(request.param, request):
        yield table if request.param == "emulator" else Turns(table)


def together(*acts: Callable[[], None]) -> None:
    """All at once; the first exception of any comes out."""
    gate, errors = threading.Barrier(len(acts)), list[BaseException]()

    def run(act: Callable[[], None]) -> None:
        gate.wait()
        try:
            act()
        except BaseException as error:  # noqa: BLE001  it is raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def claim(node: str, claim_id: str, action: str = "REPLACE") -> Claim:
    return Claim(node, claim_id, action, "why", "rule", "act", NOW - 1, {"kind": "xid", "code": "79"})


# --- many claimants --------------------------------------------------------------------------------


def test_of_many_claimants_of_several_nodes_one_wins_each(contended: Table) -> None:
    ledger, won = Ledger(contended), list[tuple[str, str]]()

    def compete(number: int) -> None:
        nodes = random.Random(number).sample(NODES, len(NODES))
        for node in nodes:
            try:
                row = ledger.claim(claim(node, f"event-{number}"), ledger.node(node), NOW + number)
            except Conflict:
                continue
            if row["claim_id"] == f"event-{number}":
                won.append((node, f"event-{number}"))

    together(*(lambda number=number: compete(number) for number in range(8)))
    assert Counter(node for node, _ in won) == dict.fromkeys(NODES, 1)
    assert {(node, (ledger.node(node) or {})["claim_id"]) for node in NODES} == set(won)
    assert sorted(row["node_id"] for row in ledger.incidents()) == sorted(NODES)


def test_of_many_that_supersede_one_wins_and_the_session_before_is_closed_once(contended: Table) -> None:
    ledger = Ledger(contended)
    old = ledger.claim(claim(NODES[0], "first", "REBOOT"), None, NOW)
    ledger.write(NODES[0], old["session"], sets={"launch": {"token": "t"}, "execution_arn": "arn:old"})
    seen, won, stopped = ledger.node(NODES[0]), list[str](), list[str]()

    def supersede(number: int) -> None:
        try:
            row = ledger.claim(claim(NODES[0], f"event-{number}"), seen, NOW + number, raises=True)
        except Conflict:
            return
        won.append(f"event-{number}")
        stopped.append(ledger.end_superseded(row, NOW))

    together(*(lambda number=number: supersede(number) for number in range(8)))
    row = ledger.node(NODES[0]) or {}
    assert won == [row["claim_id"]] and stopped == ["arn:old"]
    assert (row["launch"], row["supersedes"]["session"]) == ({"token": "t"}, old["session"])
    ends = {r["session"]: r.get("outcome") for r in ledger.incidents()}
    assert ends == {old["session"]: "SUPERSEDED", row["session"]: None}


def test_a_claim_and_the_end_of_the_session_before_it_do_not_cross(contended: Table) -> None:
    """Whoever is first: a closed session is closed once, and at most one session is active at any time."""
    ledger = Ledger(contended)
    for turn in range(6):
        session = ledger.claim(claim(NODES[0], f"before-{turn}"), ledger.node(NODES[0]), NOW + turn)[
            "session"
        ]
        ends, late = list[bool](), list[Row]()

        def close(session: int = session, ends: list[bool] = ends) -> None:
            ends.append(ledger.close(NODES[0], session, Phase.HEALED, NOW))

        def following(turn: int = turn, late: list[Row] = late) -> None:
            for _ in range(100_000):
                try:
                    late.append(ledger.claim(claim(NODES[0], f"after-{turn}"), ledger.node(NODES[0]), NOW))
                except Conflict:
                    continue
                return

        together(close, close, following)
        assert sorted(ends) == [False, True]
        row = ledger.node(NODES[0]) or {}
        assert late and late[0]["session"] > session and row["session"] == late[0]["session"]
        assert row["phase"] == "CLAIMED"
        assert (ledger.incident(f"{NODES[0]}-{session}")[0] or {})["outcome"] == "HEALED"
        ledger.close(NODES[0], row["session"], Phase.CANCELLED, NOW)


def test_a_claim_that_rests_on_a_row_of_before_another_session_is_refused(contended: Table) -> None:
    """Between the look and the claim a whole session came and went: what was decided is out of date."""
    ledger = Ledger(contended)
    first = ledger.claim(claim(NODES[0], "first"), None, NOW)
    ledger.close(NODES[0], first["session"], Phase.HEALED, NOW)
    seen = ledger.node(NODES[0])
    between = ledger.claim(claim(NODES[0], "between"), seen, NOW + 1)
    ledger.close(NODES[0], between["session"], Phase.HEALED, NOW + 2)
    for stale in (None, first, seen):
        with pytest.raises(Conflict):
            ledger.claim(claim(NODES[0], "late"), stale, NOW + 3)
    with pytest.raises(Conflict):
        ledger.claim(claim(NODES[0], "late", "REPLACE"), first, NOW + 3, raises=True)
    assert (ledger.node(NODES[0]) or {})["claim_id"] == "between"
    assert len(ledger.incidents()) == 2


def test_writes_of_a_session_that_ends_meanwhile_are_fenced_from_then_on(contended: Table) -> None:
    ledger = Ledger(contended)
    session = ledger.claim(claim(NODES[0], "first"), None, NOW)["session"]
    written, fenced = list[int](), list[int]()

    def work() -> None:
        for number in range(30):
            try:
                ledger.write(NODES[0], session, sets={"progress": number})
                written.append(number)
            except Fenced:
                fenced.append(number)

    def close() -> None:
        ledger.close(NODES[0], session, Phase.CANCELLED, NOW)

    together(work, close)
    row = ledger.node(NODES[0]) or {}
    assert row.get("progress", -1) == (written[-1] if written else -1)
    assert fenced == list(range(len(written), 30))


def test_of_many_that_raise_the_attempt_one_does(contended: Table) -> None:
    ledger = Ledger(contended)
    session = ledger.claim(claim(NODES[0], "first"), None, NOW)["session"]
    raised: list[int] = []

    def restart() -> None:
        try:
            row = ledger.write(NODES[0], session, {"attempt": 2}, (), equals("attempt", 1))
        except Conflict:
            return
        raised.append(row["attempt"])

    together(*[restart] * 8)
    assert raised == [2]


def test_of_many_resumes_of_one_job_one_is_claimed(contended: Table) -> None:
    jobs = JobLedger(contended)
    jobs.register("gpt", ["n0"], NODES[:1], {})
    jobs.wait_for("gpt", NODES[0], f"{NODES[0]}-1")
    won: list[str] = []

    def settle(number: int) -> None:
        row = jobs.settle("gpt", NODES[0], f"{NODES[0]}-1", NODES[1], "")
        assert row is not None
        try:
            claimed = jobs.claim_resume(row, f"claim-{number}", "why", NOW, supersede=False)
        except Conflict:
            return
        if claimed["resume_claim"] == f"claim-{number}":
            won.append(claimed["resume_claim"])

    together(*(lambda number=number: settle(number) for number in range(6)))
    assert won == [(jobs.job("gpt") or {})["resume_claim"]]
    assert (jobs.job("gpt") or {})["resume_number"] == 1


# --- the breaker -----------------------------------------------------------------------------------


def counted(table: Table) -> dict[str, set[str]]:
    row = table.get(*KEY) or {}
    return {name: set(value) for name, value in row.items() if name.startswith("removals")}


@pytest.mark.parametrize("per_detector", [None, 1])
def test_the_caps_hold_in_any_race(contended: Table, per_detector: int | None) -> None:
    """Nobody is admitted above the fleet's cap or a detector's, and while there is room somebody is."""
    breaker = Breaker(contended, 3, WINDOW, per_detector)
    admitted: list[tuple[str, str]] = []

    def ask(number: int) -> None:
        incident, detector = f"{NODES[0]}-{number}", f"detector_{number % 2}"
        for _ in range(SQS_ATTEMPTS):
            refusal = breaker.admit(incident, detector, NOW + number / 10)
            if refusal == "":
                admitted.append((incident, detector))
            if "too fast" not in refusal:
                return

    together(*(lambda number=number: ask(number) for number in range(10)))
    assert len(admitted) == (3 if per_detector is None else 2)
    maps = counted(contended)
    assert maps["removals"] == {incident for incident, _ in admitted}
    for detector in {detector for _, detector in admitted}:
        assert maps[f"removals_by_{detector}"] == {i for i, d in admitted if d == detector}
        assert len(maps[f"removals_by_{detector}"]) <= (per_detector or 3)


def test_slots_that_are_given_back_meanwhile_are_given_to_one_each(contended: Table) -> None:
    breaker = Breaker(contended, 2, WINDOW)
    first = [f"{NODES[0]}-{number}" for number in range(2)]
    assert [breaker.admit(incident, "kernel", NOW) for incident in first] == ["", ""]
    inside, most = threading.Semaphore(0), list[int]()
    admitted: list[str] = []

    def give_back() -> None:
        for incident in first:
            breaker.release(incident, "kernel")
            inside.release()

    def ask(number: int) -> None:
        for _ in range(SQS_ATTEMPTS):
            refusal = breaker.admit(f"{NODES[1]}-{number}", "kernel", NOW + 1)
            most.append(len(counted(contended)["removals"]))
            if refusal == "":
                admitted.append(f"{NODES[1]}-{number}")
                return

    together(give_back, *(lambda number=number: ask(number) for number in range(5)))
    assert len(admitted) <= 2 and max(most) <= 2
    assert counted(contended)["removals"] == set(admitted)


def test_one_probe_is_let_through_when_the_window_has_moved_on(contended: Table) -> None:
    breaker = Breaker(contended, 2, WINDOW)
    for number in range(2):
        assert breaker.admit(f"{NODES[0]}-{number}", "kernel", NOW) == ""
    assert "2 of 2 removals" in breaker.admit(f"{NODES[1]}-0", "kernel", NOW + 1)
    later = NOW + WINDOW + 10
    admitted: list[str] = []

    def ask(number: int) -> None:
        for _ in range(SQS_ATTEMPTS):
            refusal = breaker.admit(f"{NODES[2]}-{number}", "kernel", later)
            if refusal == "":
                admitted.append(f"{NODES[2]}-{number}")
            if "too fast" not in refusal:
                return

    together(*(lambda number=number: ask(number) for number in range(6)))
    assert len(admitted) == 1
    assert (contended.get(*KEY) or {})["tripped"]["probe"] == admitted[0]


def test_a_succession_counts_once_whoever_asks_at_the_same_time(contended: Table) -> None:
    breaker = Breaker(contended, 1, WINDOW)
    assert breaker.admit(f"{NODES[0]}-1", "kernel", NOW) == ""
    answers: dict[str, str] = {}

    def succeed() -> None:
        for _ in range(SQS_ATTEMPTS):
            answers["new"] = breaker.admit(f"{NODES[0]}-2", "kernel", NOW + 1, f"{NODES[0]}-1")
            if "too fast" not in answers["new"]:
                return

    def ask(number: int) -> None:
        answers[f"{number}"] = breaker.admit(f"{NODES[1]}-{number}", "kernel", NOW + 1)

    together(succeed, *(lambda number=number: ask(number) for number in range(4)))
    assert [name for name, refusal in answers.items() if refusal == ""] == ["new"]
    assert counted(contended)["removals"] == {f"{NODES[0]}-2"}


# --- the SDK's own retry -----------------------------------------------------------------------------


class Lossy:
    """The answers of some writes get lost after DynamoDB has done them: botocore asks again by itself."""

    def __init__(self, table: DynamoTable) -> None:
        self.lost = 0
        self._lose = self._after = 0
        endpoint = table._client._endpoint
        self._real = endpoint._do_get_response
        endpoint._do_get_response = self._ask
        self._restore = lambda: setattr(endpoint, "_do_get_response", self._real)

    def next(self, answers: int = 1, after: int = 0) -> None:
        """The answers of these writes, after so many that come through."""
        self._lose, self._after = answers, after

    def _ask(self, request: Any, operation: Any, context: Any) -> Any:
        answer = self._real(request, operation, context)
        if operation.name == "UpdateItem" and self._lose and self._after:
            self._after -= 1
        elif operation.name == "UpdateItem" and self._lose:
            self._lose -= 1
            self.lost += 1
            return None, ReadTimeoutError(endpoint_url=request.url)
        return answer

    def close(self) -> None:
        self._restore()


@pytest.fixture(params=["moto", "emulator"])
def lossy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Table, Lossy]]:
    """A DynamoDB table and the way to lose the answer to its next write. botocore does not wait between."""
    for table in world(request.param, request):
        assert isinstance(table, DynamoTable)
        monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
        lossy = Lossy(table)
        try:
            yield table, lossy
        finally:
            lossy.close()


def test_a_claim_whose_answer_was_lost_is_a_claim(lossy: tuple[Table, Lossy]) -> None:
    """The second try finds its condition false and its own claim in the row that comes with the refusal."""
    ledger = Ledger(lossy[0])
    lossy[1].next()
    row = ledger.claim(claim(NODES[0], "event-1"), None, NOW)
    assert lossy[1].lost == 1
    assert (row["claim_id"], row["phase"], row["attempt"]) == ("event-1", "CLAIMED", 1)
    assert row == ledger.node(NODES[0]) and len(ledger.incidents()) == 1
    with pytest.raises(Conflict):
        ledger.claim(claim(NODES[0], "event-2"), None, NOW)


def test_a_superseding_claim_whose_answer_was_lost_is_a_claim(lossy: tuple[Table, Lossy]) -> None:
    ledger = Ledger(lossy[0])
    old = ledger.claim(claim(NODES[0], "event-1", "REBOOT"), None, NOW)
    lossy[1].next()
    row = ledger.claim(claim(NODES[0], "event-2"), old, NOW + 1, raises=True)
    assert (lossy[1].lost, row["claim_id"], row["supersedes"]["session"]) == (1, "event-2", old["session"])


def test_an_admission_whose_answer_was_lost_is_an_admission_and_counts_once(
    lossy: tuple[Table, Lossy],
) -> None:
    breaker = Breaker(lossy[0], 2, WINDOW)
    assert breaker.admit(f"{NODES[0]}-1", "kernel", NOW) == ""
    lossy[1].next()
    assert breaker.admit(f"{NODES[1]}-1", "kernel", NOW + 1) == ""
    assert lossy[1].lost == 1
    assert counted(lossy[0])["removals"] == {f"{NODES[0]}-1", f"{NODES[1]}-1"}
    assert "2 of 2" in breaker.admit(f"{NODES[2]}-1", "kernel", NOW + 2)


def test_a_probe_whose_answer_was_lost_is_the_probe(lossy: tuple[Table, Lossy]) -> None:
    breaker = Breaker(lossy[0], 1, WINDOW)
    assert breaker.admit(f"{NODES[0]}-1", "kernel", NOW) == ""
    assert breaker.admit(f"{NODES[1]}-1", "kernel", NOW) != ""
    later = NOW + WINDOW + 1
    assert breaker.tidy(later)
    lossy[1].next()
    assert breaker.admit(f"{NODES[1]}-1", "kernel", later) == ""
    assert lossy[1].lost == 1
    assert "half-open" in breaker.admit(f"{NODES[2]}-1", "kernel", later)


def test_a_close_whose_answer_was_lost_has_closed_the_session_as_it_was_asked(
    lossy: tuple[Table, Lossy],
) -> None:
    ledger = Ledger(lossy[0])
    session = ledger.claim(claim(NODES[0], "event-1"), None, NOW)["session"]
    lossy[1].next()
    ledger.close(NODES[0], session, Phase.HEALED, NOW + 5)
    row, (head, _) = ledger.node(NODES[0]) or {}, ledger.incident(f"{NODES[0]}-{session}")
    assert lossy[1].lost == 1 and head is not None
    assert (row["phase"], row["ended_at"], head["outcome"], "closing" in row) == (
        "HEALED",
        NOW + 5,
        "HEALED",
        False,
    )


def test_a_resume_whose_answer_was_lost_is_claimed_once(lossy: tuple[Table, Lossy]) -> None:
    jobs = JobLedger(lossy[0])
    row = jobs.register("gpt", ["n0"], NODES[:1], {})
    lossy[1].next()
    claimed = jobs.claim_resume(row, "exit/gpt/0", "why", NOW, supersede=True)
    assert (lossy[1].lost, claimed["resume_number"], claimed["resume_claim"]) == (1, 1, "exit/gpt/0")


def test_a_fenced_write_whose_answer_was_lost_is_written_once(lossy: tuple[Table, Lossy]) -> None:
    ledger = Ledger(lossy[0])
    session = ledger.claim(claim(NODES[0], "event-1"), None, NOW)["session"]
    lossy[1].next()
    ledger.act(NODES[0], session, ledger.write(NODES[0], session, sets={"acts": {}}), "reboot", NOW + 3)
    row = ledger.node(NODES[0]) or {}
    assert (lossy[1].lost, row["acts"], row["phase"] in ACTIVE) == (1, {"reboot": NOW + 3}, True)


# --- triage as a whole ---------------------------------------------------------------------------------


def gateways(table: Table, nodes: list[str]) -> Gateways:
    """Triage's ports over this table, everything else in memory. At most two of the nodes may be removed."""
    gw = Gateways({}, cluster(removals=2))
    gw.table, gw.clock, gw.fleet = table, MemoryClock(NOW), MemoryFleet("demo")
    gw.workflows, gw.bus, gw.notices = MemoryWorkflows(), MemoryBus(), MemoryNotices()
    gw.objects, gw.queues, gw.topology = MemoryObjects(), MemoryQueues(), MemoryTopology()
    for number, node in enumerate(nodes):
        gw.fleet.add(node, tags={"planaria:name": f"demo-{number}"})
        facts = {"name": f"demo-{number}", "group": "workers", "state": "running", "gone": False}
        gw.ledger.note_node(node, {**facts, "instance_type": "p5.48xlarge"})
    return gw


def judged(gw: Gateways, text: str) -> list[dict[str, Any]]:
    """What triage recorded of an event; it comes back as often as SQS brings it back."""
    for _ in range(RECEIVES):
        ends = [end for _, end in Batch(gw).judge([("m", text)])]
        failed = [end for end in ends if isinstance(end, Exception)]
        if not failed:
            return [end for end in ends if not isinstance(end, Exception)]
        assert all(isinstance(error, Conflict | Fenced) for error in failed), failed
    raise AssertionError("it would be a dead letter")


def test_many_triages_at_once_open_one_incident_per_node_and_no_more_than_the_cap(contended: Table) -> None:
    """The same and different faults of every node, to several Lambdas at the same moment."""
    gw = gateways(contended, NODES)
    same = [events.xid(node, 79, NOW - 1) for node in NODES]

    def work(number: int) -> None:
        mine = [*same, *(events.xid(node, 48, NOW - 2) for node in NODES)]
        random.Random(number).shuffle(mine)
        for text in mine[:5]:
            judged(gw, text)

    together(*(lambda number=number: work(number) for number in range(6)))
    rows = {node: gw.ledger.node(node) or {} for node in NODES}
    active = [node for node, row in rows.items() if row.get("phase") in ACTIVE]
    assert len(active) <= 2
    running = {arn.rpartition(":")[2] for arn in gw.workflows.executions}  # type: ignore[attr-defined]
    assert {rows[node]["execution"] for node in active} <= running <= executed(gw)
    open_ones = [row for row in gw.ledger.incidents() if "outcome" not in row]
    assert sorted(row["node_id"] for row in open_ones) == sorted(active)
    assert all(row.get("held") or row.get("phase") in ACTIVE for row in rows.values() if row.get("session"))
    slots = set((contended.get(*KEY) or {})["removals"])
    own = {f"{node}-{rows[node]['session']}" for node in active}
    # A session that was superseded while it asked may leave its slot for a window: one removal too few, never
    # one too many.
    assert own <= slots and {slot.rpartition("-")[0] for slot in slots - own} <= {
        row["node_id"] for row in rows.values()
    }


def test_sweeps_and_redelivered_events_finish_half_made_claims_once(
    contended: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triage died after the claims; its events come back, with a stronger fault, while two sweeps look."""
    gw = gateways(contended, NODES)
    monkeypatch.setattr(wiring, "gateways", lambda: gw)
    texts = {node: events.alarm(node, "StatusCheckFailed_Instance", "ALARM", NOW - 1) for node in NODES}
    for node in NODES[:3]:
        fault = {"kind": "status_check", "code": "StatusCheckFailed_Instance", "detector": "ec2_status"}
        identity = json.loads(texts[node])["id"]
        gw.ledger.claim(Claim(node, identity, "REBOOT", "why", "rule", "act", NOW - 1, fault), None, NOW)
    gw.clock.advance(30)  # type: ignore[attr-defined]
    stronger = events.xid(NODES[0], 79, NOW + 29)

    def sweep() -> None:
        sweeping.handler({"source": "aws.scheduler"}, None)

    def triage(text: str) -> None:
        judged(gw, text)

    together(sweep, sweep, *(lambda t=text: triage(t) for text in [*texts.values(), stronger]))
    sweep()
    rows = {node: gw.ledger.node(node) or {} for node in NODES}
    active = [node for node, row in rows.items() if row.get("phase") in ACTIVE]
    assert 1 <= len(active) <= 2
    running = {arn.rpartition(":")[2] for arn in gw.workflows.executions}  # type: ignore[attr-defined]
    assert {rows[node]["execution"] for node in active} <= running <= executed(gw)
    assert {rows[node]["attempt"] for node in active} == {1}
    assert sorted(r["node_id"] for r in gw.ledger.incidents() if "outcome" not in r) == sorted(active)
    slots = set((contended.get(*KEY) or {})["removals"])
    own = {f"{node}-{rows[node]['session']}" for node in active}
    # A session that was superseded while it asked may leave its slot for a window: one removal too few, never
    # one too many.
    assert own <= slots and {slot.rpartition("-")[0] for slot in slots - own} <= {
        row["node_id"] for row in rows.values()
    }


def executed(gw: Gateways) -> set[str]:
    """The executions of all sessions that went past the breaker; one may be superseded before it starts."""
    past = [row for row in gw.ledger.incidents() if row.get("outcome") in (None, "SUPERSEDED")]
    return {f"heal-{row['node_id']}-{row['session']}-1" for row in past}


def emptied(table: Table) -> None:
    assert isinstance(table, DynamoTable)
    for item in table._client.scan(TableName=table._name)["Items"]:
        table._client.delete_item(TableName=table._name, Key={"pk": item["pk"], "sk": item["sk"]})


def test_triage_opens_once_whichever_answer_of_dynamodb_gets_lost(lossy: tuple[Table, Lossy]) -> None:
    """Every write in turn is done by DynamoDB and asked again by the SDK."""
    table, wire = lossy
    number = 0
    while True:
        emptied(table)
        gw = gateways(table, NODES[1:2])
        before = wire.lost
        wire.next(1, after=number)
        text = events.xid(NODES[1], 79, NOW - 1)
        [end] = judged(gw, text)
        if wire.lost == before:
            break
        number += 1
        row = gw.ledger.node(NODES[1]) or {}
        assert (end["outcome"], row["phase"], row["attempt"]) == ("OPENED", "CLAIMED", 1), number
        assert len(gw.workflows.executions) == 1 and len(gw.ledger.incidents()) == 1  # type: ignore[attr-defined]
        assert set((table.get(*KEY) or {})["removals"]) == {f"{NODES[1]}-{row['session']}"}
        assert judged(gw, text) == []  # a duplicate, which is counted
    assert number >= 8, "each of the writes of one claim"
