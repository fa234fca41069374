import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.affected import affected
from planaria.core.classify import classify
from planaria.core.judge import judge
from planaria.core.node import NodeView
from planaria.core.parsers import REGISTRY, parse, parse_text
from planaria.core.policy import Policy
from planaria.core.signal import Kind, Signal

EVENTS = Path(__file__).parents[1] / "events"
A, B = "i-0aaaaaaaaaaaaaaa1", "i-0bbbbbbbbbbbbbbb2"


def load(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return event


def one(event: object) -> Signal:
    (signal,) = parse(event)
    return signal


def expected() -> dict[str, list[list[str]]]:
    table: dict[str, list[list[str]]] = {}
    with (EVENTS / "expected.csv").open() as lines:
        for row in csv.DictReader(lines):
            name = row.pop("file")
            table.setdefault(name, []).append(list(row.values()))
    return table


EXPECTED = expected()


def test_every_recorded_event_has_an_expectation() -> None:
    assert {path.name for path in EVENTS.glob("*.json")} == set(EXPECTED)


def test_every_parser_has_a_recorded_event() -> None:
    kinds = {
        (e["source"].partition("/")[0], e.get("detail-type") or e["detail_type"])
        for e in map(json.loads, (path.read_text() for path in EVENTS.glob("*.json")))
    }
    parsers = {REGISTRY[key] for key in kinds if key in REGISTRY}
    assert parsers == set(REGISTRY.values())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_recorded_event(name: str) -> None:
    got = []
    for signal in parse(json.loads((EVENTS / name).read_text())):
        node = NodeView(signal.node_id) if signal.node_id else None
        end = judge(signal, node, known=False, policy=Policy.default(), now=signal.time or 0.0)
        got.append([signal.node_id or "", signal.kind, signal.code, end.outcome, end.action or "", end.rule])
        assert end.reason
    assert got == EXPECTED[name]


def test_time_comes_from_the_event() -> None:
    assert one(load("ec2_rebalance")).time == 1772600767.0
    assert one(load("agent_xid_79")).time == 1772600767.25


def test_deadlines() -> None:
    assert one(load("ec2_spot_terminate")).evidence["deadline"] == 1772600767.0 + 120
    assert one(load("capacity_interruption")).evidence["deadline"] == 1772600887.0
    block = one(load("capacity_block_expiration_title"))
    assert block.evidence["deadline"] == 1772600767.0 + 600  # 40 minutes before the end, less 30
    assert one(load("health_retirement_bare_id")).evidence["starts_at"] == 1773839943.0


def test_both_spellings_of_the_detail_type() -> None:
    dash, underscore = load("capacity_block_expiration_title"), load("capacity_block_expiration_underscore")
    assert one(dash).kind is one(underscore).kind is Kind.CAPACITY_END
    assert one(underscore).event_id is None
    assert (
        one(dash).evidence["reservation"] == one(underscore).evidence["reservation"] == "cr-0ddddddddddddddd4"
    )


def test_an_event_without_id_is_known_by_its_content() -> None:
    event = load("capacity_block_expiration_underscore")
    assert one(event).dedupe_key == one(dict(reversed(event.items()))).dedupe_key
    assert one(event).dedupe_key != one({**event, "time": "2026-03-04T05:06:08Z"}).dedupe_key


def test_health_copies_share_their_key_and_pages_do_not() -> None:
    event = load("health_store_drive_backup")
    copy = {**event, "id": "another", "detail": {**event["detail"], "backupEvent": "false"}}
    page = {**event, "detail": {**event["detail"], "page": "2"}}
    bare = {
        **event,
        "detail": {k: v for k, v in event["detail"].items() if k not in ("eventArn", "communicationId")},
    }
    assert one(event).dedupe_key == one(copy).dedupe_key
    assert len({one(e).dedupe_key for e in (event, page, bare)}) == 3


def test_entities_have_keys_of_their_own() -> None:
    keys = [
        signal.dedupe_key
        for name in ("health_retirement_several", "alarm_two_instances", "unknown_ssm_two_instances")
        for signal in parse(load(name))
    ]
    assert len(set(keys)) == len(keys) == 6


def test_game_day_plays_aws_and_is_marked() -> None:
    real, played = one(load("ec2_spot_terminate")), one(load("gameday_spot"))
    assert (real.injected, played.injected) == (False, True)
    assert (real.kind, real.node_id, real.code) == (played.kind, played.node_id, played.code)


def test_injected_and_replayed_are_marked() -> None:
    assert one(load("agent_xid_79")).injected
    assert not one(load("agent_xid_13")).injected
    assert one(load("ec2_spot_replayed")).replay
    assert not one(load("ec2_spot_terminate")).replay


@pytest.mark.parametrize(
    "source",
    [
        f"planaria.node/AROA:{B}",
        f"planaria.node/{A}",
        f"planaria.node/AROA:{A}:{A}",
        "planaria.node/",
        f"planaria.node/a/b:{A}",
    ],
)
def test_an_agent_may_report_about_its_own_node_only(source: str) -> None:
    signal = one({**load("agent_xid_79"), "source": source})
    assert "own node only" in signal.invalid
    assert signal.node_id is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"detail": None}, "an agent's event must have a detail object"),
        ({"detail": {"kind": "xid"}}, "an agent's event must name its instance in detail.instance_id"),
        ({"detail": {"instance_id": A}}, "a node signal must name detail.kind, such as xid"),
    ],
)
def test_an_agent_is_told_what_is_missing(change: dict[str, Any], sentence: str) -> None:
    assert one({**load("agent_xid_79"), **change}).invalid == sentence


@pytest.mark.parametrize("missing", ["job_id", "attempt", "event", "exit_code"])
def test_a_job_signal_names_its_job(missing: str) -> None:
    event = load("agent_job_exit")
    del event["detail"][missing]
    assert missing in one(event).invalid


def test_numbers_as_codes() -> None:
    event = load("agent_xid_79")
    event["detail"]["code"] = 79
    assert one(event).code == "79"


def test_reservation_is_mapped_to_its_nodes() -> None:
    nodes = [
        NodeView(B, reservation="cr-0ddddddddddddddd4"),
        NodeView(A, reservation="cr-0ddddddddddddddd4"),
        NodeView("i-0cccccccccccccccc", reservation="cr-other"),
        NodeView("i-0eeeeeeeeeeeeeeee", reservation="cr-0ddddddddddddddd4", managed=False),
        NodeView("i-0fffffffffffffff0", reservation="cr-0ddddddddddddddd4", gone=True),
        NodeView("i-0fffffffffffffff1", reservation=""),
    ]
    signals = affected(one(load("capacity_block_expiration_underscore")), nodes)
    assert [signal.node_id for signal in signals] == [A, B]
    assert len({signal.dedupe_key for signal in signals}) == 2
    spot = one(load("ec2_spot_terminate"))
    assert affected(spot, nodes) == [spot]
    unmapped = one(load("capacity_block_expiration_title"))
    assert affected(unmapped, []) == [unmapped]


@pytest.mark.parametrize(
    "text", ["", "{", b"\xff\xfe\x00", "NaN garbage", b"", "[" * 100_000, "1" * 5000, "\udc80"]
)
def test_text_that_is_no_json(text: str | bytes) -> None:
    (signal,) = parse_text(text)
    assert signal.invalid
    assert signal.event_id is None


def test_text_that_is_json() -> None:
    content = (EVENTS / "ec2_rebalance.json").read_bytes()
    assert parse_text(content) == parse_text(content.decode()) == parse(json.loads(content))


@pytest.mark.parametrize(
    "event", [None, 1, "text", [], {}, {"id": "x"}, {"detail-type": 1}, {"detail-type": ""}]
)
def test_what_is_no_event_is_invalid(event: object) -> None:
    signal = one(event)
    assert signal.invalid
    assert signal.event_id is None


def test_an_arn_of_something_else_names_no_instance() -> None:
    event = {
        "detail-type": "x",
        "source": "aws.x",
        "resources": ["arn:aws:rds:us-west-2:1:instance/i-0aaaa", "i-", 3],
    }
    assert one(event).node_id is None


# --- what the documents of a source leave open ----------------------------------------------------------

BLOCK_ENDS = sorted(name.removesuffix(".json") for name in EXPECTED if name.startswith("capacity_block_exp"))


@pytest.mark.parametrize("name", [name for name in BLOCK_ENDS if not name.endswith("unnamed")])
def test_every_spelling_of_a_capacity_blocks_end_names_its_reservation_and_its_end(name: str) -> None:
    signal = one(load(name))
    assert signal.evidence == {"reservation": "cr-0ddddddddddddddd4", "deadline": 1772600767.0 + 600}
    member = NodeView(A, reservation="cr-0ddddddddddddddd4")
    assert [copy.node_id for copy in affected(signal, [member])] == [A]


@pytest.mark.parametrize(
    "title",
    [
        f"{ec2}Capacity Block {word}{end}"
        for ec2 in ("", "EC2 ")
        for word in ("", "Reservation ")
        for end in ("Expiration Warning", "Delivered")
    ],
)
@pytest.mark.parametrize("key", ["detail-type", "detail_type"])
def test_every_title_of_a_capacity_block_is_read(title: str, key: str) -> None:
    event = load("capacity_block_expiration_title")
    del event["detail-type"]
    kind = Kind.CAPACITY_END if title.endswith("Warning") else Kind.UNKNOWN
    signal = one({**event, key: title})
    assert (signal.kind, signal.detail_type) == (kind, title)
    assert signal.evidence["reservation"] == "cr-0ddddddddddddddd4"


def test_a_reservation_is_never_read_from_something_else() -> None:
    event = load("capacity_block_expiration_unnamed")
    for detail in ({"capacity-reservation-id": "i-0aaa"}, {"capacity-reservation-id": ["cr-0ddd"]}, {}, None):
        assert "capacity-reservation-id" in one({**event, "detail": detail, "resources": ["cb-1"]}).invalid


def test_a_two_minute_warning_without_a_time_ends_in_two_minutes() -> None:
    assert one(load("capacity_interruption_without_time")).evidence["deadline"] == 1772600767.0 + 120


def test_pages_of_health_differ_and_a_number_means_the_same_page() -> None:
    event = load("health_retirement_page_two")
    number = {**event, "detail": {**event["detail"], "page": 2}}
    first = {**event, "detail": {**event["detail"], "page": "1"}}
    none = {**event, "detail": {k: v for k, v in event["detail"].items() if k != "page"}}
    assert one(event).dedupe_key == one(number).dedupe_key != one(first).dedupe_key
    assert one(first).dedupe_key == one(none).dedupe_key


def test_a_scheduled_change_far_ahead_has_its_time_and_no_end() -> None:
    evidence = one(load("health_retirement_far_ahead")).evidence
    assert evidence["starts_at"] == 1777468743.0
    assert evidence["ends_at"] is None


def test_two_metrics_of_one_alarm_in_either_order_do_not_say_which_check_fails() -> None:
    event = load("alarm_math_several_checks")
    metrics = event["detail"]["configuration"]["metrics"]
    for order in (metrics, metrics[::-1], [*metrics, metrics[0]]):
        event["detail"]["configuration"]["metrics"] = order
        assert one(event).code == "StatusCheckFailed"
    event["detail"]["configuration"]["metrics"] = [metrics[0], metrics[0]]
    assert one(event).code == "StatusCheckFailed_System"


def test_what_hyperpod_tells_about_its_own_work_is_kept() -> None:
    assert "capacity" in one(load("hyperpod_no_capacity")).evidence["failure"]
    assert one(load("hyperpod_group_scaling")).evidence["failure"] == "Insufficient capacity."
    assert one(load("hyperpod_cluster_event_older")).evidence["lifecycle_script"] == "Started"
    slurm = one(load("hyperpod_slurm_health")).evidence
    assert (slurm["component"], slurm["component_reason"]) == ("Slurmdbd", "DaemonDown")
    assert one(load("hyperpod_cluster_failed")).evidence["status"] == "Failed"


@pytest.mark.parametrize(
    ("kind", "status", "healthy"),
    [
        ("KernelReady", "True", True), ("KernelReady", "False", False), ("KernelReady", "Unknown", False),
        ("Ready", "True", True), ("Ready", "False", False), ("Ready", "Unknown", False),
        ("DiskPressure", "True", False), ("DiskPressure", "False", True), ("DiskPressure", "Unknown", False),
    ],
)  # fmt: skip
def test_a_condition_is_well_by_its_own_polarity(kind: str, status: str, healthy: bool) -> None:
    event = load("eks_gpu_fault")
    event["detail"]["condition"] |= {"type": kind, "status": status}
    signal = one(event)
    assert (signal.kind, signal.healthy, signal.code) == (
        Kind.NODE_CONDITION, healthy, f"{kind}/NvidiaXID79Error",
    )  # fmt: skip


def test_a_detector_that_cannot_see_is_no_fault_but_a_silent_kubelet_is_one() -> None:
    blind, silent = one(load("eks_network_unknown")), one(load("eks_kubelet_silent"))
    policy = Policy.default()
    assert classify(blind, None, policy).code == "NetworkingReady/NetworkingIsUnknown/unknown"
    assert classify(silent, None, policy).code == "Ready/NodeStatusUnknown"
    assert {classify(s, None, policy).detector for s in (blind, silent)} == {"eks"}


def test_a_condition_was_last_true_at_its_last_heartbeat() -> None:
    event = load("eks_gpu_fault")
    assert (one(event).time, one(event).evidence["since"]) == (1772600767.0, 1772600752.0)
    del event["detail"]["condition"]["lastHeartbeatTime"]
    assert one(event).time == 1772600752.0
    del event["detail"]["condition"]["lastTransitionTime"]
    assert one(event).time == 1772600767.0  # the event's own


@pytest.mark.parametrize(
    ("provider", "node"),
    [
        (f"aws:///us-west-2a/{A}", A),
        (f"aws://111122223333/us-west-2a/{A}", A),
        (f"aws:///us-west-2a/fargate-{A}", None),
        (f"gce:///us-west-2a/{A}", None),
        (A, None),
        ("", None),
        (7, None),
    ],
)
def test_the_instance_of_a_provider_id(provider: object, node: str | None) -> None:
    event = load("eks_gpu_fault")
    event["detail"]["provider_id"] = provider
    assert one(event).node_id == node
    assert bool(one(event).invalid) is (node is None)


def test_an_agent_tells_its_driver_and_which_gpu() -> None:
    evidence = one(load("agent_xid_48_with_driver")).evidence
    assert (evidence["driver"], evidence["gpu"]) == ("580.105.08", 4)
    assert evidence["gpu_uuid"].startswith("GPU-")
    assert "driver" not in one(load("agent_xid_79")).evidence


FOUND = {"state_change", "scheduled_event", "status_check", "node_health", "node_condition"}


@pytest.mark.parametrize("word", [*(kind.value for kind in Kind if kind not in FOUND), 7, None, []])
def test_what_sweep_cannot_find_by_itself_is_unknown(word: object) -> None:
    event = load("sweep_retirement")
    event["detail"]["kind"] = word
    assert one(event).kind is Kind.UNKNOWN


def test_nothing_was_seen_after_its_event_was_sent() -> None:
    """A node's clock may be wrong by years; what it saw "tomorrow" would make all that follows old news."""
    agent, condition = load("agent_xid_79"), load("eks_gpu_well")
    sent = 1772600767.0
    agent["detail"]["time"] = sent + 119
    assert one(agent).time == sent + 119
    for ahead in (sent + 121, 9e14):
        agent["detail"]["time"] = ahead
        assert one(agent).time == sent
    condition["detail"]["condition"]["lastHeartbeatTime"] = "2099-01-01T00:00:00Z"
    assert one(condition).time == sent
    agent["detail"]["time"] = sent - 86_400  # kept on disk while the API could not be reached
    assert one(agent).time == sent - 86_400


@pytest.mark.parametrize("value", [1e-200, -1e-200, 5e-324, 0, -0.0])
def test_a_number_that_no_table_can_hold_is_nothing(value: float) -> None:
    event = load("agent_xid_79")
    event["detail"] |= {"time": value, "count": value}
    assert (one(event).time, one(event).evidence["count"]) == (0.0, 0.0)


def test_half_a_character_reaches_no_table() -> None:
    """JSON may hold what UTF-8 cannot; an event with it must not fail for ever."""
    event = load("ec2_spot_terminate")
    event |= {"id": "a\ud800", "source": "aws.ec2\ud800", "detail-type": "x\udfff"}
    for signal in parse(event) + parse(
        load("agent_xid_79") | {"detail": {"kind": "\ud800", "instance_id": A}}
    ):
        everything = [signal.event_id, signal.dedupe_key, signal.source, signal.detail_type, signal.code]
        for value in (*everything, json.dumps(signal.evidence, ensure_ascii=False), signal.invalid):
            (value or "").encode()


def test_names_without_end_are_cut() -> None:
    event = load("ec2_spot_terminate") | {"id": "x" * 100_000, "detail-type": "y" * 100_000}
    signal = one(event)
    assert signal.event_id is None
    assert signal.dedupe_key.startswith("sha256:")
    assert len(signal.detail_type) == 256
    assert one({**event, "source": "aws.z" * 1000}).source == ("aws.z" * 1000)[:256]


# --- any event at all -----------------------------------------------------------------------------------

NODE_ID = re.compile(r"i-[0-9A-Za-z]{4,40}")
PIECES = st.sampled_from(
    [A, f"aws:///us-west-2a/{A}", f"arn:aws:ec2:us-west-2:1:instance/{B}", "cr-0ddd", "True", "Unknown", "i-",
     "2026-03-04T05:06:07Z", "EC2", "ALARM", "xid", "\ud800", "AWS/EC2", 10**400, "issue", "[completed] x"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | PIECES
NAMES = st.text(max_size=4) | st.sampled_from(
    ["instance-id", "instance_id", "provider_id", "condition", "type", "status", "reason", "kind", "code",
     "affectedEntities", "entityValue", "service", "page", "eventTypeCategory", "configuration", "metrics",
     "metricStat", "metric", "dimensions", "InstanceId", "EventDetails", "EventMetadata", "HealthSummary",
     "lastTransitionTime", "description", "state", "value", "capacity-reservation-id", "driver", "gpu"]
)  # fmt: skip
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)
SOURCES = [f"planaria.node/AROA:{A}", "planaria.node/", "planaria.sweep", "planaria.gameday", "aws.ec2", ""]
TITLES = [*sorted({title for _, title in REGISTRY}), "Planaria Sweep Finding", "x"]
ANY_EVENT = st.fixed_dictionaries(
    {"source": st.sampled_from([*SOURCES, *(source for source, _ in REGISTRY)]) | JSON},
    optional={
        "detail-type": st.sampled_from(TITLES) | JSON,
        "detail_type": st.sampled_from(TITLES) | JSON,
        "detail": st.dictionaries(NAMES, JSON, max_size=6) | JSON,
        "resources": JSON,
        "id": JSON,
        "time": JSON,
        "customer_event_id": JSON,
        "replay-name": JSON,
    },
)


@settings(max_examples=400, deadline=None, database=None)
@given(ANY_EVENT | JSON | st.binary(max_size=64) | st.text(max_size=64))
def test_any_event_is_at_least_one_sound_signal(event: Any) -> None:
    signals = parse_text(event) if isinstance(event, str | bytes) else parse(event)
    assert signals
    for signal in signals:
        assert signal.node_id is None or NODE_ID.fullmatch(signal.node_id)
        assert len(signal.code) <= 200
        assert signal.time is None or math.isfinite(signal.time)
        assert not signal.invalid or signal.node_id is None
        everything = (signal.dedupe_key, signal.source, signal.detail_type, signal.code, signal.invalid)
        assert all(len(part.encode()) <= 4096 for part in everything)
        assert len(json.dumps(signal.evidence, allow_nan=False, ensure_ascii=False).encode()) <= 32_768
    assert len({signal.dedupe_key for signal in signals}) == len(signals)
