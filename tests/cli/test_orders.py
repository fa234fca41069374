"""replace, reboot, remove: the same claim as an event, by a hand-written document."""

from collections.abc import Mapping
from typing import Any

import pytest

from planaria.core.incident import Phase, Step
from tests.cli.conftest import NODES, NOW, Bench


def _document(bench: Bench) -> Mapping[str, Any]:
    (document,) = bench.workflows.inputs.values()
    return document


@pytest.mark.parametrize(
    ("verb", "action"),
    [("replace", "REPLACE"), ("reboot", "REBOOT"), ("reset", "RESET"), ("remove", "DRAIN")],
)
def test_an_order_starts_heal_node_and_says_which_incident(bench: Bench, verb: str, action: str) -> None:
    bench.add_nodes()
    answer = bench.run(verb, "demo-3", "--reason", "GPU 3 is slow", "--json")
    assert answer.status == 0
    row = bench.node(NODES[2])
    assert row["action"] == action
    assert answer.json == {
        "incident_id": f"{NODES[2]}-{row['session']}",
        "node_id": NODES[2],
        "action": verb,
        "execution_arn": row["claim_id"],
    }
    assert _document(bench) == {"node_id": NODES[2], "action": verb, "reason": "GPU 3 is slow"}


def test_without_a_reason_the_ledger_says_who_asked(bench: Bench) -> None:
    bench.add_nodes()
    answer = bench.run("replace", NODES[0])
    assert "planaria replace" in _document(bench)["reason"]
    assert f"planaria incident {NODES[0]}-" in answer.out


def test_two_orders_have_two_names(bench: Bench) -> None:
    bench.add_nodes()
    bench.run("replace", "demo-1")
    bench.run("replace", "demo-2")
    assert len(bench.workflows.executions) == 2


def test_a_name_means_the_node_that_serves(bench: Bench) -> None:
    bench.add_nodes()
    bench.gateways.ledger.note_node(NODES[2], {"retired": True, "gone": True})
    new = "i-00000000000000009"
    bench.fleet.add(new)
    bench.gateways.ledger.note_node(
        new, {"name": "demo-3", "replaces": NODES[2], "admitted_at": NOW, "launched_at": NOW}
    )
    assert bench.run("reboot", "demo-3", "--json").json["node_id"] == new


def test_a_replacement_that_is_not_admitted_does_not_serve_yet(bench: Bench) -> None:
    bench.add_nodes()
    bench.gateways.ledger.note_node(
        "i-00000000000000009", {"name": "demo-3", "replaces": NODES[2], "launched_at": NOW + 9}
    )
    assert bench.run("replace", "demo-3", "--json").json["node_id"] == NODES[2]


def test_an_unknown_name_is_bad_input_and_starts_nothing(bench: Bench) -> None:
    bench.add_nodes()
    answer = bench.run("replace", "demo-9")
    assert answer.status == 2
    assert answer.err == (
        "planaria: No node of this cluster is called 'demo-9'; it has demo-1, demo-2, demo-3, demo-4.\n"
    )
    assert bench.workflows.executions == {}


def test_an_unknown_instance_is_refused_by_the_workflow_in_one_sentence(bench: Bench) -> None:
    answer = bench.run("replace", "i-0123456789abcdef0")
    assert answer.status == 1
    assert "is not an instance of cluster demo" in answer.err
    assert answer.err.count("\n") == 1


def test_a_second_order_on_the_same_node_names_the_incident_under_way(bench: Bench) -> None:
    bench.add_nodes()
    first = bench.run("replace", "demo-1", "--json").json["incident_id"]
    answer = bench.run("replace", "demo-1")
    assert answer.status == 1
    assert first in answer.err


def test_the_breaker_holds_for_people_too(bench: Bench) -> None:
    bench.add_nodes()
    for name in ("demo-1", "demo-2"):
        assert bench.run("replace", name).status == 0
    answer = bench.run("replace", "demo-3")
    assert answer.status == 1
    assert "removals of the fleet used" in answer.err


def test_a_node_that_a_job_needs_is_not_removed(bench: Bench) -> None:
    bench.add_nodes(job="gpt-demo")
    answer = bench.run("remove", "demo-2")
    assert answer.status == 1
    assert "replace the node instead" in answer.err


def test_a_reason_that_is_too_long_is_bad_input(bench: Bench) -> None:
    bench.add_nodes()
    assert bench.run("replace", "demo-1", "--reason", "x" * 300).status == 2
    assert bench.workflows.executions == {}


def _ends(bench: Bench, outcome: Phase, why: str = "") -> None:
    def end(incident: Mapping[str, Any]) -> None:
        ledger = bench.gateways.ledger
        ledger.step(incident["incident_id"], Step.ISOLATED, NOW + 21)
        ledger.close(incident["node_id"], incident["session"], outcome, NOW + 22, why)

    bench.workflows.afterwards = end


def test_wait_follows_to_the_end(bench: Bench) -> None:
    bench.add_nodes()
    _ends(bench, Phase.HEALED)
    answer = bench.run("replace", "demo-1", "--wait", "--json")
    assert answer.status == 0
    assert answer.json["outcome"] == "HEALED"
    assert "isolated" in answer.err
    shown = bench.run("reboot", "demo-2", "--wait")
    assert "ended HEALED" in shown.out


def test_wait_fails_with_the_reason_when_the_incident_is_escalated(bench: Bench) -> None:
    bench.add_nodes()
    _ends(bench, Phase.ESCALATED, "the node did not come up")
    answer = bench.run("replace", "demo-1", "--wait", "--json")
    assert answer.status == 1
    assert answer.json["outcome"] == "ESCALATED"
    assert answer.err.endswith("ended ESCALATED: the node did not come up.\n")


def test_a_workflow_that_never_begins_is_not_waited_for_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add_nodes()
    monkeypatch.setattr("planaria.cli.orders.CLAIM_SECONDS", 0.0)
    monkeypatch.setattr(
        "lambdas.begin_incident.handler", lambda event, context: {"result": "DONE", "incident": {}}
    )
    answer = bench.run("replace", "demo-1")
    assert answer.status == 1
    assert "has not begun" in answer.err
