import json
from pathlib import Path
from typing import Any

import pytest

from planaria.core.errors import InvalidInput
from planaria.core.signal import Kind
from planaria.triage_offline import run

EVENTS = Path(__file__).parents[1] / "events"
SHARED = Path(__file__).parents[2].parent / "shared" / "events"
A, B = "i-0aaaaaaaaaaaaaaa1", "i-0bbbbbbbbbbbbbbb2"
KEYS = [
    "file",
    "event_id",
    "source",
    "detail_type",
    "node_id",
    "kind",
    "code",
    "outcome",
    "action",
    "reason",
    "rule",
]


def files(*names: str) -> list[Path]:
    return [EVENTS / f"{name}.json" for name in names]


def ends(results: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    return [(result["outcome"], result["action"]) for result in results]


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_object_is_the_contracts() -> None:
    (result,) = run(files("agent_xid_79"))
    assert list(result) == KEYS
    assert result["file"] == str(EVENTS / "agent_xid_79.json")
    assert result["event_id"] == json.loads((EVENTS / "agent_xid_79.json").read_text())["id"]
    assert result["source"] == f"planaria.node/AROASAMPLE:{A}"
    json.dumps(result)


def test_kinds_are_the_contracts_words() -> None:
    words = "spot_interruption rebalance state_change capacity_end scheduled_event "
    words += "status_check node_health lifecycle agent unknown"
    assert [kind.value for kind in Kind] == words.split()


def test_the_order_is_arguments_then_entities() -> None:
    results = run(files("health_retirement_several", "ec2_rebalance"))
    assert [result["node_id"] for result in results] == [A, B, A]


def test_each_file_is_judged_against_an_empty_ledger() -> None:
    twice = files("ec2_spot_terminate", "ec2_spot_terminate", "ec2_state_terminated")
    assert ends(run(twice)) == [("OPENED", "REPLACE")] * 3


def test_a_sequence_has_memory() -> None:
    names = [
        "hyperpod_reboot",
        "hyperpod_reboot",
        "agent_xid_13",
        "ec2_spot_terminate",
        "hyperpod_healthy",
        "ec2_state_shutting_down",
        "ec2_state_terminated",
        "ec2_rebalance",
    ]
    results = run(files(*names), sequence=True)
    assert ends(results) == [
        ("OPENED", "REBOOT"),
        ("DUPLICATE", None),
        ("JOINED", "MONITOR"),
        ("JOINED", "REPLACE"),  # raises
        ("JOINED", "MONITOR"),  # the spot interruption is not HyperPod's to take back
        ("JOINED", "REPLACE"),
        ("JOINED", "REPLACE"),
        ("STALE", None),
    ]


def test_a_healthy_report_ends_its_session_in_a_sequence() -> None:
    results = run(files("hyperpod_reboot", "hyperpod_healthy", "hyperpod_replace"), sequence=True)
    assert ends(results) == [("OPENED", "REBOOT"), ("JOINED", "MONITOR"), ("OPENED", "REPLACE")]


def test_acts_of_the_inventory_cover_their_effects(tmp_path: Path) -> None:
    inventory = write(tmp_path / "nodes.json", [{"node_id": A, "acts": {"terminate": 1772600760}}])
    assert ends(run(files("ec2_state_terminated"), inventory=inventory)) == [("COVERED", None)]


def test_the_inventory_says_what_is_managed(tmp_path: Path) -> None:
    inventory = write(
        tmp_path / "nodes.json",
        [
            {"node_id": B, "instance_type": "p5.48xlarge", "state": "running", "job_id": "gpt",
             "launched_at": "2026-03-01T00:00:00Z", "capacity_reservation_id": "cr-0ddddddddddddddd4"},
            {"node_id": "i-0ccccccccccccccc3", "capacity_reservation_id": "cr-0ddddddddddddddd4"},
            {"node_id": "i-0ddddddddddddddd4", "state": "terminated"},
        ],
    )  # fmt: skip
    results = run(files("health_retirement_several"), inventory=inventory)
    assert ends(results) == [("NOT_MANAGED", None), ("OPENED", "DRAIN")]
    results = run(files("capacity_block_expiration_underscore"), inventory=inventory)
    assert [result["node_id"] for result in results] == [B, "i-0ccccccccccccccc3"]
    assert ends(results) == [("OPENED", "DRAIN")] * 2
    event = {"source": "aws.ec2", "detail-type": "EC2 Instance Rebalance Recommendation",
             "detail": {"instance-id": "i-0ddddddddddddddd4"}}  # fmt: skip
    assert ends(run([write(tmp_path / "gone.json", event)], inventory=inventory)) == [("STALE", None)]


def test_a_file_may_hold_a_list(tmp_path: Path) -> None:
    events = [json.loads(path.read_text()) for path in files("ec2_rebalance", "health_retirement_several")]
    results = run([write(tmp_path / "list.json", [*events, 5])])
    assert [result["node_id"] for result in results] == [A, A, B, None]
    assert results[-1]["outcome"] == "INVALID"
    assert run([write(tmp_path / "empty.json", [])]) == []


@pytest.mark.parametrize(
    "content", ["", "no json", "{}", '{"id": "x", "source": "aws.ec2"}', "7", "null", "[" * 9999]
)
def test_what_is_no_event_is_one_invalid_object(tmp_path: Path, content: str) -> None:
    (result,) = run([write(tmp_path / "x.json", content)])
    assert (result["outcome"], result["action"], result["event_id"], result["node_id"]) == (
        "INVALID",
        None,
        None,
        None,
    )
    assert result["reason"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\x80\x81{}")
    assert run([tmp_path / "x.json"])[0]["outcome"] == "INVALID"


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    for missing in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InvalidInput, match=r"cannot be read \(.*\)\.$"):
            run([*files("ec2_rebalance"), missing])
        with pytest.raises(InvalidInput, match="cannot be read"):
            run(files("ec2_rebalance"), inventory=missing)


@pytest.mark.parametrize("content", ["no json", {"node_id": A}, [3], [{"node_id": "web-1"}], [{}]])
def test_a_broken_inventory_is_one_sentence(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        run(files("ec2_rebalance"), inventory=write(tmp_path / "nodes.json", content))
    assert str(refusal.value).startswith(str(tmp_path / "nodes.json"))


SHARED_ENDS = {
    "autoscaling_terminate_lifecycle": ("lifecycle", "OPENED", "DRAIN"),
    "cloudwatch_alarm_status_check_failed": ("status_check", "OPENED", "REPLACE"),
    "ec2_rebalance_recommendation": ("rebalance", "OBSERVED", "MONITOR"),
    "ec2_spot_interruption_warning": ("spot_interruption", "OPENED", "REPLACE"),
    "ec2_state_change_pending": ("state_change", "OBSERVED", "MONITOR"),
    "ec2_state_change_running": ("state_change", "OBSERVED", "MONITOR"),
    "ec2_state_change_shutting_down": ("state_change", "OPENED", "REPLACE"),
    "ec2_state_change_stopped": ("state_change", "OPENED", "REPLACE"),
    "ec2_state_change_stopping": ("state_change", "OPENED", "REPLACE"),
    "ec2_state_change_terminated": ("state_change", "OPENED", "REPLACE"),
    "health_instance_retirement_scheduled": ("scheduled_event", "OPENED", "DRAIN"),
    "health_odcr_underutilization": ("unknown", "OBSERVED", "MONITOR"),
    "health_store_drive_degraded": ("node_health", "OPENED", "DRAIN"),
    "hyperpod_cluster_event_no_capacity": ("node_health", "OBSERVED", "MONITOR"),
    "hyperpod_node_healthy": ("node_health", "OBSERVED", "MONITOR"),
    "hyperpod_node_unhealthy": ("node_health", "OPENED", "REPLACE"),
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared events here")
def test_the_shared_events() -> None:
    results = run(sorted(SHARED.glob("*.json")))
    got = {Path(r["file"]).stem: (r["kind"], r["outcome"], r["action"]) for r in results}
    assert got == SHARED_ENDS
    without_node = {Path(r["file"]).stem for r in results if r["node_id"] is None}
    assert without_node == {"health_odcr_underutilization"}


def test_a_cluster_file_gives_the_policy(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        run(files("ec2_rebalance"), cluster=tmp_path / "none.yaml")
