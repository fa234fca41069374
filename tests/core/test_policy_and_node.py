from typing import Any

import pytest

from planaria.core.errors import InvalidInput
from planaria.core.fault import Action
from planaria.core.maintenance import Window
from planaria.core.node import NodeView
from planaria.core.overrides import Override
from planaria.core.policy import Mode, Policy, Rebalance


def test_absent_keys_have_their_defaults() -> None:
    assert Policy.from_document({}) == Policy.default() == Policy()


def test_every_key_is_read() -> None:
    policy = Policy.from_document(
        {
            "mode": "observe",
            "breaker": {"max_removals": 2, "max_share": 0.5, "window_seconds": 60, "max_per_detector": 1},
            "boot_timeout_seconds": 5,
            "drain_deadline_seconds": 6,
            "job_settle_seconds": 0,
            "max_attempts": 7,
            "max_resumes": 8,
            "resume_window_seconds": 9.5,
            "rebalance": "ignore",
            "gpu_reset": True,
            "approval_timeout_seconds": 10,
            "boot_grace_seconds": 11,
            "confirmation_seconds": 12,
            "ladder_seconds": 13,
            "offender_incidents": 14,
            "offender_seconds": 15,
            "max_replacements": 16,
            "replacements_seconds": 17,
            "maintenance": [{"weekly": "sun 02:00", "hours": 4}],
            "catalog": [{"kind": "xid", "code": "63", "action": "REBOOT", "reason": "recurs here"}],
            "a_key_of_tomorrow": 1,
        }
    )
    assert (policy.mode, policy.rebalance, policy.gpu_reset) == (Mode.OBSERVE, Rebalance.IGNORE, True)
    assert (policy.breaker.max_removals, policy.breaker.max_share, policy.breaker.window_seconds) == (
        2,
        0.5,
        60.0,
    )
    assert policy.breaker.max_per_detector == 1
    assert (policy.boot_timeout_seconds, policy.drain_deadline_seconds, policy.job_settle_seconds) == (
        5.0,
        6.0,
        0.0,
    )
    assert (policy.max_attempts, policy.max_resumes, policy.resume_window_seconds) == (7, 8, 9.5)
    assert (policy.approval_timeout_seconds, policy.boot_grace_seconds) == (10.0, 11.0)
    assert (policy.confirmation_seconds, policy.ladder_seconds) == (12.0, 13.0)
    assert (policy.offender_incidents, policy.offender_seconds) == (14, 15.0)
    assert (policy.max_replacements, policy.replacements_seconds) == (16, 17.0)
    assert policy.maintenance == (Window(6 * 86_400 + 7200.0, 6 * 86_400 + 21_600.0, weekly=True),)
    assert policy.catalog == (Override("xid", "63", Action.REBOOT, "recurs here"),)
    assert Policy.from_document({"mode": "approve"}).mode is Mode.APPROVE


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([], "policy must be an object, not []"),
        ({"breaker": 3}, "policy.breaker must be an object, not 3"),
        ({"mode": "maybe"}, "policy.mode must be one of act, approve, observe, not 'maybe'"),
        ({"mode": ["act"]}, "policy.mode must be one of act, approve, observe, not ['act']"),
        ({"rebalance": None}, "policy.rebalance must be one of checkpoint, move, ignore, not None"),
        (
            {"breaker": {"max_removals": 0}},
            "policy.breaker.max_removals must be a whole number of at least 1, not 0",
        ),
        (
            {"breaker": {"max_removals": True}},
            "policy.breaker.max_removals must be a whole number of at least 1, not True",
        ),
        ({"breaker": {"max_share": 1.5}}, "policy.breaker.max_share must be above 0 and at most 1, not 1.5"),
        ({"boot_timeout_seconds": -1}, "policy.boot_timeout_seconds must be a number of at least 0, not -1"),
        (
            {"boot_timeout_seconds": float("nan")},
            "policy.boot_timeout_seconds must be a number of at least 0, not nan",
        ),
        ({"max_attempts": 1.5}, "policy.max_attempts must be a whole number of at least 1, not 1.5"),
        ({"max_replacements": 0}, "policy.max_replacements must be a whole number of at least 1, not 0"),
        ({"ladder_seconds": None}, "policy.ladder_seconds must be a number of at least 0, not None"),
        ({"maintenance": "sun"}, "policy.maintenance must be a list of windows, not 'sun'"),
        ({"catalog": {}}, "policy.catalog must be a list of answers, not {}"),
        ({"catalog": [3]}, "policy.catalog[0] must be an object, not 3"),
        ({"gpu_reset": "yes"}, "policy.gpu_reset must be true or false, not 'yes'"),
    ],
)
def test_a_broken_policy_is_refused_with_one_sentence(document: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Policy.from_document(document)
    assert str(refusal.value) == sentence


def test_the_policy_of_a_cluster_file_is_known_here() -> None:
    recipes = pytest.importorskip("planaria.recipes")
    written = recipes.ClusterFile.model_construct(
        name="demo",
        region="us-east-1",
        scheduler=recipes.Scheduler.PROCESS,
        policy=recipes.Policy(),
        node_groups=(),
    ).document(2.0)["policy"]
    known = set(Policy.__dataclass_fields__)
    assert set(written) <= known
    assert Policy.from_document(written).breaker.window_seconds == written["breaker"]["window_seconds"]


def test_a_node_is_its_row() -> None:
    row = {
        "pk": "NODE#i-0aaaa",
        "sk": "NODE",
        "node_id": "i-0aaaa",
        "managed": True,
        "instance_type": "p5.48xlarge",
        "session": 12,
        "phase": "RUNNING",
        "action": "REBOOT",
        "fault_kind": "xid",
        "fault_code": "48",
        "opened_at": 100,
        "detected_at": 99.5,
        "acts": {"reboot": 101, "launch": 102.5, "odd": "x"},
        "job_id": "gpt",
    }
    node = NodeView.from_row(row)
    assert (node.family, node.active, node.over, node.session) == ("p5", True, False, 12)
    assert node.acts == {"reboot": 101.0, "launch": 102.5}
    assert node.act_at("launch", "reboot") == 102.5
    assert node.destroyed_at() == 101.0


def test_an_act_of_an_earlier_session_destroys_nothing_in_this_one() -> None:
    node = NodeView("i-0aaaa", phase="RUNNING", opened_at=200.0, acts={"reboot": 101.0})
    assert node.destroyed_at() is None


@pytest.mark.parametrize(
    "row", [{}, {"managed": "yes"}, {"managed": 1}, {"node_id": 3, "acts": [1], "session": "x"}]
)
def test_a_half_written_row_is_not_managed(row: dict[str, Any]) -> None:
    node = NodeView.from_row(row)
    assert not node.managed
    assert not node.active
