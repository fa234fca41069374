"""Explanations: stable keys, the rule with its sources, and JSON for whatever an event says."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from planaria.core.explain import explain, sources
from planaria.core.judge import judge
from planaria.core.node import NodeView
from planaria.core.overrides import overrides_of
from planaria.core.parsers import parse
from planaria.core.policy import Policy
from tests.core.test_any_value import A, T, fast, nearly_events, rows, values

EVENTS = Path(__file__).parents[1] / "events"
KEYS = ["parse", "fault", "catalog", "decision", "judgement"]
PARSE = ["kind", "code", "node_id", "time", "healthy", "injected", "replay", "invalid", "evidence"]


def explained(name: str, policy: Policy | None = None, **row: Any) -> dict[str, Any]:
    """The first signal of a recorded event, on a node with these attributes."""
    signal = parse(json.loads((EVENTS / f"{name}.json").read_text()))[0]
    view = NodeView.from_row({"node_id": signal.node_id, "managed": True, **row})
    chosen = policy or Policy.default()
    judgement = judge(signal, view, known=False, policy=chosen, now=T)
    return explain(signal, view, chosen, judgement).document()


def test_the_keys_are_stable() -> None:
    found = explained("agent_xid_79")
    assert list(found) == KEYS
    assert list(found["parse"]) == PARSE
    assert set(found["catalog"]) == {"rule", "action", "severity", "reason", "sources"}
    assert list(found["decision"]) == ["action", "rule", "reason", "sources"]
    assert list(found["judgement"]) == ["outcome", "mode", "raises", "cancels", "tells_gone", "job_id"]
    assert set(found["fault"]) >= {"kind", "code", "severity", "detector", "confidence", "deadline"}


def test_the_rule_comes_with_its_sources() -> None:
    found = explained("agent_xid_79")
    assert (found["catalog"]["rule"], found["catalog"]["action"]) == ("xid-79", "REPLACE")
    assert (
        len(found["catalog"]["sources"]) >= 4 and found["catalog"]["sources"] == found["decision"]["sources"]
    )
    assert (found["fault"]["kind"], found["fault"]["severity"]) == ("xid", "FATAL")
    assert found["judgement"] | {"outcome": "OPENED", "mode": "act"} == found["judgement"]


def test_a_clusters_own_answer_is_the_rule() -> None:
    answer = {"kind": "xid", "code": "79", "action": "REBOOT", "reason": "these racks come back"}
    found = explained("agent_xid_79", Policy(catalog=overrides_of([answer])))
    assert found["catalog"]["action"] == found["decision"]["action"] == "REBOOT"
    assert "these racks come back" in found["catalog"]["reason"]
    assert found["catalog"]["rule"] != "xid-79"


def test_what_the_judge_makes_of_it_stands_beside_the_catalogue() -> None:
    found = explained("ec2_state_terminated", acts={"terminate": T - 5})
    assert found["judgement"]["outcome"] == "COVERED" and found["judgement"]["tells_gone"] is True
    assert found["decision"] | {"action": None, "rule": "own-act"} == found["decision"]
    assert found["decision"]["sources"] == ["Planaria: docs/outcomes.md"]
    assert (found["catalog"]["rule"], found["catalog"]["action"]) == ("instance-terminated", "REPLACE")


def test_what_means_nothing_has_no_fault() -> None:
    invalid = explained("ec2_spot_without_detail")
    assert (invalid["fault"], invalid["catalog"]) == (None, None)
    assert invalid["parse"]["invalid"] == invalid["decision"]["reason"]
    stranger = explained("agent_xid_79", managed=False)
    assert (stranger["fault"], stranger["judgement"]["outcome"]) == (None, "NOT_MANAGED")


@pytest.mark.parametrize(
    ("text", "parts"), [("", []), ("a", ["a"]), ("a=1; b=2 ;", ["a=1", "b=2"]), (" ; ", [])]
)
def test_sources_are_a_list(text: str, parts: list[str]) -> None:
    assert sources(text) == parts


@fast
@given(nearly_events() | values, rows)
def test_whatever_can_be_judged_can_be_explained(event: Any, row: dict[str, Any]) -> None:
    for signal in parse(event):
        view = NodeView.from_row(row) if signal.node_id == A else None
        judgement = judge(signal, view, known=False, policy=Policy.default(), now=T)
        found = explain(signal, view, Policy.default(), judgement).document()
        assert list(found) == KEYS
        json.dumps(found, allow_nan=False)
        assert found["judgement"]["outcome"] == judgement.outcome
