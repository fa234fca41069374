"""nodes, incidents, incident, jobs: JSON for scripts, tables for people, a way on where there is nothing."""

import re

import pytest

from planaria.memory.fleet import MemoryFleet
from tests.cli.conftest import NODES, NOW, Bench

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_no_nodes_says_how_a_node_belongs_to_the_cluster(bench: Bench) -> None:
    answer = bench.run("nodes")
    assert answer.status == 0
    assert "planaria:cluster=demo" in answer.out
    assert bench.run("nodes", "--json").json == []


def test_nodes(bench: Bench) -> None:
    bench.add_nodes(job="gpt-demo")
    name = bench.add_incident(closed=False)
    documents = bench.run("nodes", "--json").json
    assert [d["name"] for d in documents] == ["demo-1", "demo-2", "demo-3", "demo-4"]
    assert documents[0] == {
        "node_id": NODES[0],
        "name": "demo-1",
        "group": "workers",
        "instance_type": "p5.48xlarge",
        "zone": "us-east-1a",
        "lifecycle": "on-demand",
        "state": "running",
        "health": "Schedulable",
        "job_id": "gpt-demo",
        "incident_id": None,
        "replaces": None,
        "launched_at": "2026-11-02T09:14:05.000Z",
        "spare": None,
        "held": None,
        "approval": None,
        "planned": [],
        "suspect": [],
    }
    assert documents[2]["incident_id"] == name
    table = bench.run("nodes").out
    assert all(node in table for node in NODES)


def test_nodes_that_are_gone_are_shown_on_demand(bench: Bench) -> None:
    bench.add_nodes()
    fleet = bench.fleet
    assert isinstance(fleet, MemoryFleet)
    fleet.terminate(NODES[3])
    bench.gateways.ledger.note_node(NODES[3], {"gone": True})
    del fleet.instances[NODES[2]]  # EC2 forgets terminated instances after an hour
    assert [d["name"] for d in bench.run("nodes", "--json").json] == ["demo-1", "demo-2"]
    everything = bench.run("nodes", "--all", "--json").json
    assert [(d["state"], d["health"]) for d in everything[2:]] == [("terminated", None)] * 2


def test_an_instance_that_the_ledger_does_not_know_yet_is_listed(bench: Bench) -> None:
    bench.fleet.add(NODES[0], tags={"planaria:name": "demo-1", "planaria:cluster": "demo"})
    (document,) = bench.run("nodes", "--json").json
    assert (document["node_id"], document["name"], document["health"]) == (
        NODES[0],
        "demo-1",
        "Unschedulable",
    )


def test_no_incidents_says_how_to_make_one(bench: Bench) -> None:
    assert "planaria inject" in bench.run("incidents").out
    assert bench.run("incidents", "--json").json == []


def test_incidents_newest_first_and_open_ones_alone(bench: Bench) -> None:
    bench.add_nodes()
    healed = bench.add_incident(NODES[0])
    bench.clock.advance(100)
    still = bench.add_incident(NODES[1], closed=False)
    documents = bench.run("incidents", "--json").json
    assert {d["incident_id"] for d in documents} == {healed, still}
    first = next(d for d in documents if d["incident_id"] == healed)
    assert (first["name"], first["outcome"], first["seconds"]) == ("demo-1", "HEALED", 4.75)
    assert [d["incident_id"] for d in bench.run("incidents", "--open", "--json").json] == [still]
    assert len(bench.run("incidents", "--limit", "1", "--json").json) == 1
    assert "Xid 79" in bench.run("incidents").out


def test_ids_are_whole_in_a_narrow_terminal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    bench.add_nodes()
    name = bench.add_incident()
    bench.gateways.ledger.note_incident(name, {"outcome_reason": "a long story " * 20})
    shown = bench.run("incidents").out
    assert name in shown
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert sum(name in line for line in shown.splitlines()) == 1


def test_an_incident_has_exactly_the_keys_that_scripts_rely_on(bench: Bench) -> None:
    bench.add_nodes(job="gpt-demo")
    name = bench.add_incident()
    document = bench.run("incident", name, "--json").json
    assert list(document) == [
        "incident_id",
        "node_id",
        "session",
        "mode",
        "action",
        "outcome",
        "opened_at",
        "closed_at",
        "execution_arn",
        "replacement_id",
        "job_id",
        "resume_step",
        "climbed",
        "timeline",
    ]
    assert document["incident_id"] == name == f"{document['node_id']}-{document['session']}"
    assert (document["outcome"], document["resume_step"]) == ("HEALED", 40)
    assert document["replacement_id"] == "i-00000000000000009"
    assert ISO.fullmatch(document["opened_at"])
    assert ISO.fullmatch(document["closed_at"])
    assert [(s["step"], s["seconds"]) for s in document["timeline"]] == [
        ("detected", 0.0),
        ("triaged", 0.25),
        ("isolated", 0.75),
        ("first_new_step", 4.5),
        ("closed", 4.75),
    ]
    assert all(set(s) == {"step", "at", "seconds"} and ISO.fullmatch(s["at"]) for s in document["timeline"])


def test_an_open_incident_has_nulls_where_nothing_is_known(bench: Bench) -> None:
    bench.add_nodes()
    document = bench.run("incident", bench.add_incident(closed=False), "--json").json
    keys = ("outcome", "closed_at", "execution_arn", "replacement_id", "job_id", "resume_step")
    assert [document[key] for key in keys] == [None] * 6


def test_an_incident_for_people(bench: Bench) -> None:
    bench.add_nodes(job="gpt-demo")
    shown = bench.run("incident", bench.add_incident()).out
    for text in ("demo-3", "HEALED", "Xid 79", "first new step", "step 41", "4.50 s"):
        assert text in shown


def test_the_incident_of_a_job_without_a_node(bench: Bench) -> None:
    bench.add_nodes(job="gpt-demo")
    sets = {
        "listing": "INCIDENT",
        "incident_id": "resume-gpt-demo-2",
        "node_id": None,
        "session": 2,
        "job_id": "gpt-demo",
        "opened_at": NOW,
        "detected_at": NOW,
    }
    bench.gateways.table.write("INCIDENT#resume-gpt-demo-2", "INCIDENT", sets=sets)
    bench.gateways.jobs.write("gpt-demo", {"resume_name": "resume-gpt-demo-2", "resume_arn": "arn:resume"})
    document = bench.run("incident", "resume-gpt-demo-2", "--json").json
    assert (document["node_id"], document["execution_arn"]) == (None, "arn:resume")
    assert "gpt-demo" in bench.run("incidents").out


def test_an_unknown_incident_is_bad_input(bench: Bench) -> None:
    answer = bench.run("incident", "i-0-nope")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == "planaria: There is no incident 'i-0-nope'; `planaria incidents` lists them.\n"


def test_no_jobs(bench: Bench) -> None:
    assert "planaria sandbox up" in bench.run("jobs").out
    assert bench.run("jobs", "--json").json == []


def test_jobs(bench: Bench) -> None:
    bench.add_nodes(job="gpt-demo")
    bench.gateways.jobs.wait_for("gpt-demo", NODES[2], f"{NODES[2]}-1")
    bench.gateways.jobs.write("gpt-demo", {"resume_step": 40, "resume_phase": "HEALED"})
    (document,) = bench.run("jobs", "--json").json
    assert [node["name"] for node in document["nodes"]] == ["demo-1", "demo-2", "demo-3", "demo-4"]
    assert document["waits_for"] == [{"node_id": NODES[2], "name": "demo-3", "incident_id": f"{NODES[2]}-1"}]
    assert (document["attempt"], document["resume_step"]) == (1, 40)
    assert "step 40" in bench.run("jobs").out


def seen(bench: Bench, node: str, kind: str, code: str, at: float, detector: str = "agent") -> None:
    entry = {
        "kind": kind,
        "code": code,
        "pci": "",
        "place": "",
        "detector": detector,
        "last": at,
        "minutes": [],
    }
    recent = dict(bench.node(node).get("recent") or {})
    bench.gateways.ledger.note_node(node, {"recent": recent | {f"{kind}|{code}||": entry}})


def test_a_fault_that_waits_for_a_second_observer_is_shown(bench: Bench) -> None:
    bench.add_nodes()
    assert "SUSPECT" not in bench.run("nodes").out
    seen(bench, NODES[0], "gpu_missing", "count", NOW + 10)
    documents = bench.run("nodes", "--json").json
    assert documents[0]["suspect"] == [
        {
            "kind": "gpu_missing",
            "code": "count",
            "pci": None,
            "seen_at": "2026-11-02T09:14:15.000Z",
            "action": "REBOOT",
            "rule": "unconfirmed",
            "waits_for": "a second observer",
        }
    ]
    assert [document["suspect"] for document in documents[1:]] == [[]] * 3
    shown = bench.run("nodes").out
    assert "SUSPECT" in shown and "gpu_missing count: waits for a second observer" in shown


def test_what_was_answered_is_old_or_asks_for_nothing_is_no_suspicion(bench: Bench) -> None:
    bench.add_nodes()
    note = bench.gateways.ledger.note_node
    seen(bench, NODES[0], "gpu_missing", "count", NOW - 86_500)
    seen(bench, NODES[0], "xid", "13", NOW + 10)
    seen(bench, NODES[1], "gpu_missing", "count", NOW + 10)
    note(NODES[1], {"acts": {"reboot": NOW + 11}})
    seen(bench, NODES[2], "gpu_missing", "count", NOW + 10)
    bench.add_incident(NODES[2], closed=False)
    seen(bench, NODES[3], "gpu_missing", "count", NOW + 10)
    bench.add_incident(NODES[3])  # it ended after the fault was seen
    assert [document["suspect"] for document in bench.run("nodes", "--json").json] == [[]] * 4


def test_a_suspicion_says_what_it_waits_for(bench: Bench) -> None:
    bench.add_nodes()
    note = bench.gateways.ledger.note_node
    seen(bench, NODES[0], "gpu_missing", "count", NOW + 10)
    note(NODES[0], {"launched_at": NOW})
    seen(bench, NODES[1], "node_health", "silent", NOW + 10)
    seen(bench, NODES[2], "xid", "79", NOW + 10)
    seen(bench, NODES[3], "xid", "79", NOW + 10)
    note(NODES[3], {"held": True, "held_reason": "breaker: full"})
    found = [document["suspect"] for document in bench.run("nodes", "--json").json]
    assert [one["waits_for"] for each in found for one in each] == ["the boot to settle", "it to last", None]
    assert found[3] == []  # the hold says why
    shown = bench.run("nodes").out
    assert "xid 79: asks for REPLACE" in shown and "silent: waits for it to last" in shown
