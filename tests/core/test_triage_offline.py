import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from planaria.core.errors import InvalidInput
from planaria.core.signal import Kind
from planaria.sandbox.world import DEMO_CLUSTER
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
    "parse",
    "fault",
    "catalog",
    "decision",
    "judgement",
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
    words += "status_check node_health node_condition lifecycle agent unknown"
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


def later(name: str, seconds: int) -> Any:
    """A recorded event, so many seconds later and with an id of its own."""
    event = json.loads((EVENTS / f"{name}.json").read_text())
    moment = datetime.fromisoformat(event["time"]) + timedelta(seconds=seconds)
    return event | {"id": f"{name}+{seconds}", "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ")}


def test_a_healthy_report_ends_its_session_in_a_sequence(tmp_path: Path) -> None:
    told = [later("hyperpod_reboot", 0), later("hyperpod_healthy", 5), later("hyperpod_replace", 9)]
    paths = [write(tmp_path / f"{number}.json", event) for number, event in enumerate(told)]
    results = run(paths, sequence=True)
    assert ends(results) == [("OPENED", "REBOOT"), ("JOINED", "MONITOR"), ("OPENED", "REPLACE")]
    assert [result["judgement"]["cancels"] for result in results] == [False, True, False]


def test_the_events_of_one_file_share_a_memory(tmp_path: Path) -> None:
    told = [later("hyperpod_reboot", seconds) for seconds in (0, 0, 60)]
    results = run([write(tmp_path / "list.json", told)])
    assert [result["outcome"] for result in results] == ["OPENED", "DUPLICATE", "JOINED"]
    assert ends(run([write(tmp_path / "one.json", told[2])])) == [("OPENED", "REBOOT")]


def test_a_fault_that_repeats_within_a_file_means_more(tmp_path: Path) -> None:
    """An engine exception at the same place of the same GPU is the application's once, the GPU's twice."""
    told = [later("agent_xid_13", seconds) for seconds in (0, 3600)]
    told[1]["detail"]["time"] += 3600
    results = run([write(tmp_path / "list.json", told)])
    assert ends(results) == [("OBSERVED", "MONITOR"), ("OPENED", "REBOOT")]
    assert [result["rule"] for result in results] == ["xid-13", "xid-13-same-tpc"]
    assert results[1]["catalog"]["rule"] == "xid-13" and results[1]["decision"]["sources"]


def test_a_cluster_that_only_observes_opens_no_session(tmp_path: Path) -> None:
    content = DEMO_CLUSTER.read_text().replace("mode: act", "mode: observe")
    cluster = write(tmp_path / "cluster.yaml", content)
    told = write(tmp_path / "list.json", [later("hyperpod_reboot", 0), later("hyperpod_reboot", 600)])
    results = run([told], cluster=cluster)
    assert ends(results) == [("OPENED", "REBOOT")] * 2
    assert [result["judgement"]["mode"] for result in results] == ["observe"] * 2


def test_a_replay_of_eventbridge_claims_nothing() -> None:
    results = run(files("ec2_spot_replayed", "ec2_spot_terminate"), sequence=True)
    assert ends(results) == [("OPENED", "REPLACE")] * 2
    assert [result["judgement"]["mode"] for result in results] == ["observe", "act"]


def test_each_signal_is_explained(tmp_path: Path) -> None:
    (result,) = run(files("agent_xid_79"))
    assert result["parse"]["evidence"]["kind"] == "xid"
    assert result["catalog"]["rule"] == result["decision"]["rule"] == result["rule"] == "xid-79"
    assert result["decision"]["reason"] == result["reason"]
    assert result["decision"]["sources"]
    (invalid,) = run([write(tmp_path / "x.json", "no json")])
    assert (invalid["fault"], invalid["catalog"]) == (None, None)


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
    assert ends(results) == [("NOT_MANAGED", None), ("HELD", "DRAIN")]  # in two weeks: until then it works
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
