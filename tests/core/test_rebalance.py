"""What a rebalance recommendation leads to."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.core import rebalance
from planaria.core.classify import classify
from planaria.core.decision import decide
from planaria.core.fault import Action, Decision, Fault, Severity
from planaria.core.judge import judge
from planaria.core.node import NodeView
from planaria.core.policy import Mode, Policy, Rebalance
from planaria.core.signal import Kind, Signal

NOW = 1_793_610_845.0
HOUR = 3600.0
NODE = NodeView("i-0aaaaaaaaaaaaaaa1", name="demo-1", job_id="gpt", launched_at=NOW - 5 * HOUR)
ADVICE = Signal("e", "e", "aws.ec2", "EC2 Instance Rebalance Recommendation", Kind.REBALANCE, NODE.node_id,
                "rebalance", NOW)  # fmt: skip
MOVE = Policy(rebalance=Rebalance.MOVE)


def decided(policy: Policy, node: NodeView = NODE, signal: Signal = ADVICE) -> Decision:
    return decide(classify(signal, node, policy), node, policy, NOW)


@pytest.mark.parametrize(
    ("policy", "node", "action", "rule", "words"),
    [
        (Policy(), NODE, "MONITOR", "rebalance-hint", "a hint about risk"),
        (Policy(rebalance=Rebalance.IGNORE), NODE, "MONITOR", "rebalance-hint", "policy.rebalance is ignore"),
        (MOVE, NODE, "DRAIN", "rebalance-move", "demo-1 soon, so its job saves and it is moved to another"),
        (MOVE, replace(NODE, launched_at=None), "MONITOR", "rebalance-limit", "is not known"),
        (MOVE, replace(NODE, launched_at=NOW - 60), "MONITOR", "rebalance-limit", "demo-1 is 60 s old"),
        (MOVE, replace(NODE, launched_at=NOW + 5), "MONITOR", "rebalance-limit", "demo-1 is 0 s old"),
        (MOVE, replace(NODE, launched_at=NOW - HOUR), "DRAIN", "rebalance-move", ""),
        (MOVE, replace(NODE, moves=(NOW - 3 * HOUR,)), "DRAIN", "rebalance-move", ""),
        (MOVE, replace(NODE, moves=(NOW - 9 * HOUR, NOW - 3 * HOUR)), "MONITOR", "rebalance-limit",
         "demo-1 was moved 2 times within 24 h"),
        (MOVE, replace(NODE, moves=(NOW - 25 * HOUR, NOW - 3 * HOUR)), "DRAIN", "rebalance-move", ""),
        (replace(MOVE, rebalance_rounds=1), replace(NODE, moves=(NOW - HOUR,)), "MONITOR", "rebalance-limit",
         "was moved once"),
        (replace(MOVE, rebalance_grace_seconds=9 * HOUR), NODE, "MONITOR", "rebalance-limit",
         "none is moved before 9 h"),
    ],
)  # fmt: skip
def test_by_policy(policy: Policy, node: NodeView, action: str, rule: str, words: str) -> None:
    found = decided(policy, node)
    assert (found.action, found.rule) == (action, rule) and words in found.reason


def test_the_agents_word_is_the_same() -> None:
    told = Signal("a", "a", "planaria.node", "Planaria Node Signal", Kind.AGENT, NODE.node_id, "rebalance",
                  NOW, evidence={"kind": "rebalance"})  # fmt: skip
    assert decided(MOVE, signal=told).rule == "rebalance-move"
    assert rebalance.saves(classify(told, NODE, MOVE), "rebalance-limit", MOVE)


def test_a_persons_answer_stands() -> None:
    def own(action: str) -> Policy:
        answer = {"kind": "rebalance", "code": "*", "action": action, "reason": "ours"}
        return Policy.from_document({"rebalance": "move", "catalog": [answer]})

    stays = decided(own("MONITOR"))
    assert (stays.action, stays.reason) == (Action.MONITOR, "ours")
    assert not rebalance.saves(classify(ADVICE, NODE, own("MONITOR")), stays.rule, own("MONITOR"))
    assert decided(own("DRAIN"), replace(NODE, launched_at=NOW)).action is Action.DRAIN


@pytest.mark.parametrize("mode", list(Mode))
def test_a_move_is_judged_alike_in_every_mode(mode: Mode) -> None:
    end = judge(ADVICE, NODE, known=False, policy=replace(MOVE, mode=mode), now=NOW)
    assert (end.outcome, end.action, end.mode) == ("OPENED", "DRAIN", mode)
    assert end.fault is not None and end.fault.severity is Severity.INFO


def test_it_never_weakens_a_session_nor_confirms_a_fault() -> None:
    healing = replace(NODE, session=1, phase="RUNNING", action="REPLACE", opened_at=NOW - 5, claim_id="x")
    end = judge(ADVICE, healing, known=False, policy=MOVE, now=NOW)
    assert (end.outcome, end.raises) == ("JOINED", False)


@pytest.mark.parametrize(
    ("rule", "policy", "saves"),
    [
        ("rebalance-hint", Policy(), True),
        ("rebalance-hint", Policy(rebalance=Rebalance.IGNORE), False),
        ("rebalance-limit", MOVE, True),
        ("rebalance-move", MOVE, True),  # it works on until its replacement is ready
        ("override-rebalance-*", Policy(), False),
    ],
)
def test_when_the_job_of_the_node_saves(rule: str, policy: Policy, saves: bool) -> None:
    fault = Fault("rebalance", "rebalance", Severity.INFO, "ec2")
    assert rebalance.saves(fault, rule, policy) is saves
    assert not rebalance.saves(replace(fault, kind="xid"), rule, policy)


def test_a_move_is_counted_for_the_name() -> None:
    moved: dict[str, Any] = {"fault": {"kind": "rebalance"}, "moves": [NOW - 5]}
    assert rebalance.moves(moved, NOW) == [NOW - 5, NOW]
    assert rebalance.moves({**moved, "fault": {"kind": "xid"}}, NOW) == [NOW - 5]
    assert rebalance.moves({}, NOW) == []


@given(st.lists(st.floats(0, 48 * HOUR), max_size=20))
def test_no_course_of_advice_moves_a_name_more_often_than_the_policy_says(waits: list[float]) -> None:
    """Each move begins a new instance under the same name."""
    at, node, moved = NOW, NODE, list[float]()
    for wait in waits:
        at += wait
        told = replace(ADVICE, time=at)
        if decide(classify(told, node, MOVE), node, MOVE, at).action is Action.DRAIN:
            assert node.launched_at is not None and at - node.launched_at >= MOVE.rebalance_grace_seconds
            moved.append(at)
            row = {"fault": {"kind": "rebalance"}, "moves": list(node.moves)}
            node = replace(node, launched_at=at, moves=tuple(rebalance.moves(row, at)))
            recent = [one for one in moved if one > at - MOVE.replacements_seconds]
            assert len(recent) <= MOVE.rebalance_rounds
