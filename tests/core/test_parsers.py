import csv
import json
from pathlib import Path
from typing import Any

import pytest

from planaria.core.affected import affected
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
