"""`planaria approve`, and where the command line shows that an incident waits."""

import json
from typing import Any

import pytest

from planaria.core import approval
from planaria.core.incident import Phase
from planaria.core.table import Row
from tests.cli.conftest import NODES, NOW, Bench

NODE = NODES[2]
TOKEN = "AQCEAAAAKgAAAAMAAAAAAAAAAWhc"


@pytest.fixture
def name(bench: Bench) -> str:
    """An incident of demo-3 that waits for a person since NOW + 11, for an hour."""
    bench.add_nodes()
    made = bench.add_incident(NODE, closed=False)
    approval.ask(bench.gateways.ledger, bench.node(NODE), TOKEN, NOW + 11, 3600.0)
    bench.workflows.waiting.add(TOKEN)
    bench.gateways.breaker.admit(made, "unknown", NOW + 11)
    return made


def told(bench: Bench) -> Any:
    return bench.workflows.answers.get(TOKEN)


def asked(bench: Bench) -> Row:
    return dict(bench.node(NODE)["approval"])


def test_yes(bench: Bench, name: str) -> None:
    answer = bench.run("approve", name, "--reason", "it is really broken")
    assert answer.status == 0 and f"Incident {name} is approved" in answer.out
    assert told(bench)["result"] == "DONE" and "it is really broken" in told(bench)["reason"]
    assert (asked(bench)["answer"], asked(bench)["told"]) == ("APPROVED", True) and asked(bench)["by"]
    assert name in bench.gateways.breaker.status(bench.clock.now())["removals"]


def test_no(bench: Bench, name: str) -> None:
    answer = bench.run("approve", name, "--reject")
    assert answer.status == 0 and "rejected" in answer.out and "planaria:opt-out" in answer.out
    assert told(bench)["result"] == "REJECTED"
    assert bench.gateways.breaker.status(bench.clock.now())["removals"] == {}


def test_json_has_the_answer_and_never_the_token(bench: Bench, name: str) -> None:
    answer = bench.run("approve", name, "--json", "--reason", "yes")
    document = answer.json
    assert {key: document[key] for key in ("incident_id", "node_id", "answer", "reason", "at")} == {
        "incident_id": name,
        "node_id": NODE,
        "answer": "APPROVED",
        "reason": "yes",
        "at": "2026-11-02T09:14:25.000Z",
    }
    assert document["by"] and TOKEN not in answer.out + answer.err


@pytest.mark.parametrize("second", [(), ("--reject",)])
def test_a_second_answer_is_refused(bench: Bench, name: str, second: tuple[str, ...]) -> None:
    assert bench.run("approve", name).status == 0
    answer = bench.run("approve", name, *second)
    assert answer.status == 1 and f"Incident {name} was approved already (" in answer.err
    assert told(bench)["result"] == "DONE"


def test_bad_names(bench: Bench, name: str) -> None:
    for wrong, said in (
        ("demo-3", "is no incident id"),
        (NODE, "is no incident id"),
        (f"{NODE}-5", "there is no incident"),
        ("", "is no incident id"),
    ):
        answer = bench.run("approve", wrong)
        assert answer.status == 2 and said in answer.err.lower() and answer.err.count("\n") == 1, wrong
    assert bench.run("approve").status == 2
    assert bench.run("approve", name, "--reason", "x" * 300).status == 2
    assert told(bench) is None


def test_an_incident_that_has_ended(bench: Bench, name: str) -> None:
    session = int(name.rpartition("-")[2])
    bench.gateways.ledger.close(NODE, session, Phase.CANCELLED, NOW + 15, "the node is healthy again")
    answer = bench.run("approve", name)
    assert answer.status == 1
    assert "has ended already, CANCELLED: the node is healthy again" in answer.err


def test_an_incident_that_does_not_wait(bench: Bench) -> None:
    bench.add_nodes()
    made = bench.add_incident(NODES[0], closed=False)
    answer = bench.run("approve", made)
    assert answer.status == 1 and "does not wait for approval" in answer.err


def test_nodes_and_incident_say_until_when_it_waits(bench: Bench, name: str) -> None:
    document = next(d for d in bench.run("nodes", "--json").json if d["node_id"] == NODE)
    until = "2026-11-02T10:14:16.000Z"
    assert document["approval"] == {
        "incident_id": name,
        "asked_at": "2026-11-02T09:14:16.000Z",
        "until": until,
    }
    assert document["health"] == "Schedulable"  # nothing is isolated while it waits
    shown = " ".join(bench.run("nodes").out.split())
    assert "HELD" in shown and "waits for" in shown and "approval" in shown
    shown = bench.run("incident", name).out
    assert "approval asked" in shown and until in shown
    for words in (
        ("nodes",),
        ("nodes", "--json"),
        ("incident", name),
        ("incident", name, "--json"),
        ("incidents",),
    ):
        assert TOKEN not in bench.run(*words).out


def test_once_answered_it_waits_no_more(bench: Bench, name: str) -> None:
    bench.run("approve", name)
    document = next(d for d in bench.run("nodes", "--json").json if d["node_id"] == NODE)
    assert document["approval"] is None
    assert "approved" in bench.run("incident", name).out
    assert TOKEN not in json.dumps(document)


def test_held_nodes_have_a_column_of_their_own(bench: Bench) -> None:
    bench.add_nodes()
    assert "HELD" not in bench.run("nodes").out
    held = {"held": {"xid": {"event": "{}"}}, "held_reason": "maintenance until noon", "held_since": NOW}
    bench.gateways.ledger.note_node(NODES[0], held)
    assert "HELD" in bench.run("nodes").out
    assert bench.run("nodes", "--json").json[0]["held"] == "maintenance until noon"


def test_planned_ends_have_a_column_of_their_own(bench: Bench) -> None:
    bench.add_nodes()
    assert "PLANNED" not in bench.run("nodes").out and bench.run("nodes", "--json").json[0]["planned"] == []
    day = 86_400.0
    plan = {"kind": "scheduled_event", "code": "instance-retirement", "deadline": NOW + 9 * day,
            "latest": NOW + 8 * day, "said_at": NOW, "at": NOW, "event": "{}"}  # fmt: skip
    seen = {"kind": "scheduled_event", "code": "instance-retirement", "detector": "health", "last": NOW,
            "minutes": [int(NOW // 60)]}  # fmt: skip
    facts = {
        "planned": {"scheduled_event|x": plan},
        "recent": {"scheduled_event|instance-retirement||": seen},
    }
    bench.gateways.ledger.note_node(NODES[0], dict(facts))
    shown = " ".join(bench.run("nodes").out.split())
    assert "PLANNED" in shown and "SUSPECT" not in shown
    document = bench.run("nodes", "--json").json[0]
    [said] = document["planned"]
    assert document["suspect"] == [] and said.pop("says").startswith("ends 2026-11-11 ")
    assert said == {
        "kind": "scheduled_event", "code": "instance-retirement", "ends_at": "2026-11-11T09:14:05.000Z",
        "drained_by": "2026-11-10T09:14:05.000Z", "when_idle": True, "held_by": None,
    }  # fmt: skip
    held = {"planned": {"scheduled_event|x": {**plan, "why": "maintenance until noon", "latest": 1e15}}}
    bench.gateways.ledger.note_node(NODES[0], dict(held))
    [said] = bench.run("nodes", "--json").json[0]["planned"]
    assert said["drained_by"] is None and said["says"].endswith("; held: maintenance until noon")


def test_the_listing_says_which_incident_waits_for_a_person(bench: Bench, name: str) -> None:
    other = bench.add_incident(NODES[0], closed=False)
    found = {each["incident_id"]: each["approval"] for each in bench.run("incidents", "--json").json}
    assert found[other] is None and found[name]["until"] == "2026-11-02T10:14:16.000Z"
    lines = {line.split()[0]: line for line in bench.run("incidents").out.splitlines() if line[1:3] == "i-"}
    assert "waits for you" in lines[name] and "running" in lines[other]
    assert "waits for you" in bench.run("incident", name).out
    assert bench.run("approve", name).status == 0
    assert "waits for you" not in bench.run("incidents").out
    assert "waits for you" not in bench.run("incident", name).out
