"""planaria replay and planaria event: recorded stories judged again, for people and for scripts."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lambdas import boundary
from planaria import wiring
from planaria.cli import replay as command
from planaria.cli import target
from planaria.core.cluster import Cluster
from planaria.core.errors import InvalidInput
from planaria.core.policy import Policy
from planaria.memory.objects import MemoryObjects
from planaria.sandbox.world import DEMO_CLUSTER
from tests.cli.conftest import Answer, Bench
from tests.lambdas import events
from tests.lambdas.world import NAMES, NODES, World, cluster

SICK = NODES[1]
REBOOT = "Unhealthy", "HMA has detected fault type NvidiaErrorReboot on this node.", "None"
ROW_KEYS = {
    "event_id", "at", "source", "detail_type", "node_id", "name", "kind", "code", "then", "now", "differs",
    "note",
}  # fmt: skip
END_KEYS = {"outcome", "action", "rule", "reason", "mode"}


class Story:
    """A world in which something happened, and the command line to it."""

    def __init__(self, world: World, bench: Bench) -> None:
        self.world, self.bench = world, bench
        self.began = world.now

    def window(self) -> tuple[str, ...]:
        since, until = (command.screen.iso(at) or "" for at in (self.began - 1, self.world.now + 1))
        return "--since", since, "--until", until

    def replay(self, *words: str) -> Answer:
        return self.bench.run("replay", *self.window(), *words)

    def json(self, *words: str) -> Any:
        answer = self.replay("--json", *words)
        assert (answer.status, answer.err) == (0, "")
        return answer.json


Tell = Callable[..., Story]


@pytest.fixture
def tell(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """(cluster) -> a story in a world of four nodes, which `planaria` then looks at."""
    monkeypatch.setattr(boundary, "POLL_SECONDS", 0.0)

    def make(of: Cluster | None = None) -> Story:
        world = World(of)
        monkeypatch.setattr(wiring, "gateways", lambda: world.gw)
        found = target.Target("demo", world.gw, lambda service: bench.clients[service])
        monkeypatch.setattr(target, "_aws", lambda name: found)
        return Story(world, bench)

    return make


@pytest.fixture
def replaced(tell: Tell) -> Story:
    """A GPU fell off the bus, the node was replaced and its job resumed."""
    story = tell()
    story.world.send(events.xid(SICK, 79, story.world.now - 1))
    story.world.run()
    assert story.world.ends == ["HEALED"]
    return story


def edited(path: Path, **policy: Any) -> Path:
    """The demo's cluster file with another policy."""
    content = yaml.safe_load(DEMO_CLUSTER.read_text())
    content["policy"] = {**(content.get("policy") or {}), **policy}
    path.write_text(yaml.safe_dump(content))
    return path


# --- unchanged code and policy ---------------------------------------------------------------------


def fall_off(world: World) -> None:
    world.send(events.xid(SICK, 79, world.now - 1))


def interrupt(world: World) -> None:
    world.interrupt(SICK)


def reboot(world: World) -> None:
    world.send(events.hyperpod(SICK, *REBOOT, world.now - 1))


def lose(world: World) -> None:
    world.lose(SICK)


def vanish(world: World) -> None:
    world.lose(SICK, tell=False)


def retire(world: World) -> None:
    world.send(events.retirement(SICK, world.now))


def supersede(world: World) -> None:
    reboot(world)
    world.run(5)
    fall_off(world)


def reboot_twice(world: World) -> None:
    reboot(world)
    world.run(900)
    reboot(world)


def take_back(world: World) -> None:
    reboot(world)
    world.clock.advance(1.5)
    world.send(events.hyperpod(SICK, "Healthy", "The node is healthy.", "None", world.now))


def order(world: World) -> None:
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "GPU 3 is slow"})
    world.run(8)
    fall_off(world)


def order_something_stronger(world: World) -> None:
    reboot(world)
    world.run(3)
    world.start("heal_node", {"node_id": SICK, "action": "replace", "reason": "do not wait"})


def crash(world: World) -> None:
    world.send(events.job_exit(SICK, "gpt", 1, 1, 1, world.now))


def lose_the_replacement(world: World) -> None:
    fall_off(world)
    world.run(until=lambda: bool(world.launched))
    for replacement in world.launched:  # none in a cluster that only observes
        world.lose(replacement)


def all_at_once(world: World) -> None:
    for node in NODES:
        world.send(events.xid(node, 79, world.now - 1))


STORIES = [
    fall_off, interrupt, reboot, lose, vanish, retire, supersede, reboot_twice, take_back, order,
    order_something_stronger, crash, lose_the_replacement, all_at_once,
]  # fmt: skip


@pytest.mark.parametrize("mode", ["act", "observe"])
@pytest.mark.parametrize("happens", STORIES)
def test_by_the_same_policy_everything_ends_as_it_did(
    tell: Tell, happens: Callable[[World], None], mode: str
) -> None:
    story = tell(cluster(mode=mode, removals=2))
    happens(story.world)
    story.world.run()
    found = story.json()
    assert [each["differs"] for each in found["events"]] == [[] for _ in found["events"]], found["events"]
    stored = [pk for pk, _ in story.world.table._rows if pk.startswith("EVENT#")]
    assert found["totals"]["events"] == len(found["events"]) == len(stored) > 0
    incidents = len([row for row in story.world.incidents if "breaker:" not in row.get("outcome_reason", "")])
    assert found["totals"]["incidents"] == {"then": incidents, "now": incidents}
    assert found["totals"]["differ"] == found["totals"]["unread"] == 0
    assert found["cut"] is False


def test_nothing_is_written_and_nothing_is_started(replaced: Story) -> None:
    world = replaced.world
    rows = json.dumps(sorted(map(str, world.table._rows.items())))
    executions, sent = dict(world.workflows.executions), list(world.notices.sent)
    calls = list(world.fleet.calls)
    replaced.json()
    replaced.replay("--differences")
    assert json.dumps(sorted(map(str, world.table._rows.items()))) == rows
    assert (world.workflows.executions, world.notices.sent, world.fleet.calls) == (executions, sent, calls)


# --- what if ---------------------------------------------------------------------------------------


def test_another_policy_shows_what_would_have_been(replaced: Story, tmp_path: Path) -> None:
    answer = {"kind": "xid", "code": "79", "action": "REBOOT", "reason": "these racks come back"}
    file = edited(tmp_path / "cluster.yaml", catalog=[answer])
    found = replaced.json("--cluster-file", str(file))
    assert found["policy"] == {"from": f"the cluster file {file}", "mode": "act"}
    first = found["events"][0]
    assert (first["then"]["action"], first["now"]["action"]) == ("REPLACE", "REBOOT")
    assert "action" in first["differs"] and "these racks come back" in first["now"]["reason"]
    assert found["totals"]["differ"] == sum(1 for each in found["events"] if each["differs"]) >= 1
    assert found["totals"]["incidents"] == {"then": 1, "now": 1}


def test_an_incident_that_would_not_be_opened(replaced: Story, tmp_path: Path) -> None:
    answer = {"kind": "xid", "code": "79", "action": "MONITOR", "reason": "only look"}
    file = edited(tmp_path / "cluster.yaml", catalog=[answer])
    found = replaced.json("--cluster-file", str(file))
    assert found["events"][0]["now"]["outcome"] == "OBSERVED"
    assert found["totals"]["incidents"] == {"then": 1, "now": 0}
    assert found["totals"]["outcomes"]["OPENED"]["now"] < found["totals"]["outcomes"]["OPENED"]["then"]
    # EC2's word about the instance that was terminated then is still known as our own doing.
    gone = [each for each in found["events"] if each["kind"] == "state_change"]
    assert gone and {each["now"]["outcome"] for each in gone} == {"COVERED"}


def test_an_incident_that_never_was_stays_open(tell: Tell, tmp_path: Path) -> None:
    answer = {"kind": "xid", "code": "13", "action": "REPLACE", "reason": "we do not wait here"}
    story = tell()
    for _ in range(3):
        story.world.send(events.xid(SICK, 13, story.world.now - 1))
        story.world.run(700)
    assert story.world.ends == []
    found = story.json("--cluster-file", str(edited(tmp_path / "cluster.yaml", catalog=[answer])))
    assert [each["now"]["outcome"] for each in found["events"]] == ["OPENED", "JOINED", "JOINED"]
    assert found["totals"]["incidents"] == {"then": 0, "now": 1}


def test_a_session_ends_when_the_recorded_one_did_also_if_it_began_later(tell: Tell, tmp_path: Path) -> None:
    """Today only the second report opens; the incident ended as it did, and the third finds none."""
    story = tell()
    story.world.send(events.hyperpod(SICK, *REBOOT, story.world.now - 1))
    story.world.run(5)
    fall_off(story.world)
    story.world.run()
    file = edited(
        tmp_path / "cluster.yaml",
        catalog=[{"kind": "node_health", "code": "*", "action": "MONITOR", "reason": "not this agent"}],
    )
    found = story.json("--cluster-file", str(file))
    ends = [(each["then"]["outcome"], each["now"]["outcome"]) for each in found["events"][:1]]
    assert ends == [("OPENED", "OBSERVED")]
    second = next(each for each in found["events"] if each["code"] == "79")
    assert (second["then"]["outcome"], second["now"]["outcome"]) == ("JOINED", "OPENED")
    assert found["totals"]["incidents"] == {"then": 2, "now": 1}


def test_an_observing_cluster_is_asked_what_acting_would_do(tell: Tell) -> None:
    story = tell(cluster(mode="observe"))
    for code in (79, 79):
        story.world.send(events.xid(SICK, code, story.world.now - 1))
        story.world.run(61)
    found = story.json("--cluster-file", str(DEMO_CLUSTER))
    assert [each["then"]["outcome"] for each in found["events"]] == ["OPENED", "OPENED"]
    assert [each["now"]["outcome"] for each in found["events"]] == ["OPENED", "JOINED"]
    assert [each["now"]["mode"] for each in found["events"]] == ["act", "act"]


def test_a_policy_that_only_observes_would_have_touched_nothing(replaced: Story, tmp_path: Path) -> None:
    found = replaced.json("--cluster-file", str(edited(tmp_path / "c.yaml", mode="observe")))
    assert found["totals"]["incidents"] == {"then": 1, "now": 0}
    assert {each["now"]["mode"] for each in found["events"]} == {"observe"}
    exits = [each for each in found["events"] if each["code"] == "job_exit"]
    assert exits and {each["now"]["outcome"] for each in exits} == {"OPENED"}


def test_the_breaker_of_today(tell: Tell, tmp_path: Path) -> None:
    story = tell(cluster(removals=4))
    all_at_once(story.world)
    story.world.run(30)
    file = edited(tmp_path / "c.yaml", breaker={"max_removals": 1, "max_share": 0.25, "window_minutes": 60.0})
    found = story.json("--cluster-file", str(file))
    outcomes = [each["now"]["outcome"] for each in found["events"] if each["code"] == "79"]
    assert outcomes == ["OPENED", "HELD", "HELD", "HELD"]
    assert "breaker" in found["events"][1]["now"]["reason"]


def test_a_replay_of_eventbridge_opens_nothing_in_the_replay_either(tell: Tell) -> None:
    story = tell()
    again = json.loads(events.xid(SICK, 79, story.world.now - 1))
    story.world.send(json.dumps(again | {"replay-name": "friday"}))
    story.world.run(5)
    fall_off(story.world)
    story.world.run(5)
    found = story.json()
    assert [each["now"]["mode"] for each in found["events"][:2]] == ["observe", "act"]
    assert [each["now"]["outcome"] for each in found["events"][:2]] == ["OPENED", "OPENED"]
    assert [each["differs"] for each in found["events"]] == [[] for _ in found["events"]]


# --- windows, nodes, limits ------------------------------------------------------------------------


def test_the_object_has_the_keys_of_the_page(replaced: Story) -> None:
    found = replaced.json()
    assert list(found) == ["cluster", "since", "until", "policy", "cut", "events", "totals"]
    assert found["cluster"] == "demo" and found["policy"]["mode"] == "act"
    assert "running cluster demo" in found["policy"]["from"]
    for each in found["events"]:
        assert set(each) == ROW_KEYS and set(each["then"]) == set(each["now"]) == END_KEYS
    totals = found["totals"]
    assert set(totals) == {"events", "differ", "unread", "outcomes", "incidents", "counted"}
    assert found["events"] == sorted(found["events"], key=lambda each: each["at"])
    assert found["events"][0]["name"] == NAMES[1]


def test_a_window_that_begins_in_the_middle_knows_what_was_before(replaced: Story) -> None:
    world = replaced.world
    middle = world.incidents[0]["opened_at"] + 1.0
    found = replaced.bench.run(
        "replay", "--json", "--since", command.screen.iso(middle) or "", "--until", replaced.window()[3]
    ).json
    assert found["totals"]["events"] == len(found["events"]) > 0
    assert [each["differs"] for each in found["events"]] == [[] for _ in found["events"]]
    assert found["totals"]["incidents"] == {"then": 0, "now": 0}


def test_one_node_by_its_name_or_id(tell: Tell) -> None:
    story = tell()
    for node in NODES[1:3]:
        story.world.send(events.xid(node, 13, story.world.now - 1))
    by_name, by_id = story.json("--node", NAMES[2]), story.json("--node", NODES[2])
    assert [each["node_id"] for each in by_name["events"]] == [NODES[2]]
    assert by_name == by_id and by_name["totals"]["events"] == 2
    unknown = story.replay("--node", "demo-9")
    assert unknown.status == 2 and "demo-9" in unknown.err


def test_differences_alone(replaced: Story, tmp_path: Path) -> None:
    assert replaced.json("--differences")["events"] == []
    answer = {"kind": "xid", "code": "79", "action": "MONITOR", "reason": "only look"}
    file = edited(tmp_path / "cluster.yaml", catalog=[answer])
    found = replaced.json("--differences", "--cluster-file", str(file))
    assert found["events"] and all(each["differs"] for each in found["events"])
    assert len(found["events"]) == found["totals"]["differ"] < found["totals"]["events"]


def test_a_limit_says_that_there_is_more(replaced: Story) -> None:
    found = replaced.json("--limit", "2")
    assert (found["cut"], found["totals"]["events"], len(found["events"])) == (True, 2, 2)
    assert "--limit" in replaced.replay("--limit", "2").out
    assert replaced.json("--limit", "999")["cut"] is False


def test_what_was_only_counted(tell: Tell) -> None:
    story = tell()
    for _ in range(3):
        story.world.send(events.spot("i-0123456789abcdef0", story.world.now))
    text = events.xid(SICK, 13, story.world.now - 1)
    for _ in range(5):
        story.world.send(text)
    found = story.json()
    assert found["totals"]["events"] == 1
    counted = {what: number for what, number in found["totals"]["counted"].items() if number}
    assert counted == {"NOT_MANAGED": 3, "DUPLICATE": 4}
    assert "NOT_MANAGED 3, DUPLICATE 4" in story.replay().out


def test_a_row_whose_text_was_not_stored_has_its_line(tell: Tell) -> None:
    story = tell()
    story.world.gw.ledger.record_outcome("bare", story.world.now, {"outcome": "OPENED", "node_id": SICK})
    [line] = story.json()["events"]
    assert (line["now"], line["differs"]) == (None, []) and "not stored" in line["note"]
    assert "not stored" in story.replay().out


def test_a_large_event_comes_from_the_bucket(tell: Tell) -> None:
    story = tell()
    event = json.loads(events.xid(SICK, 13, story.world.now - 1))
    event["detail"]["message"] += " " * 5000
    story.world.send(json.dumps(event))
    [line] = story.json()["events"]
    assert line["now"]["outcome"] == "OBSERVED" and line["differs"] == []
    story.world.objects.bodies.clear()
    [line] = story.json()["events"]
    assert line["now"] is None and "could not be read" in line["note"]


def test_on_aws_the_bucket_is_asked_of_the_function(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Functions:
        def get_function_configuration(self, FunctionName: str) -> dict[str, Any]:  # noqa: N803
            assert FunctionName == "planaria-demo-triage"
            return {"Environment": {"Variables": {"PLANARIA_BUCKET": "b"}}}

    class Buckets:
        def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
            class Body:
                def read(self) -> bytes:
                    return f"{Bucket}/{Key}".encode()

            return {"Body": Body()}

    bench.clients |= {"lambda": Functions(), "s3": Buckets()}
    body = command.bodies(target.connect("demo", None, True))
    assert body("events/x.json") == b"b/events/x.json"


# --- where the policy comes from ---------------------------------------------------------------------


def test_on_aws_the_cluster_file_must_be_named(replaced: Story) -> None:
    gateways = replaced.world.gw
    gateways.cluster = Cluster("demo", "us-east-1", "", Policy.default(), {})
    refused = replaced.replay()
    assert refused.status == 2 and "--cluster-file" in refused.err and refused.out == ""
    assert replaced.replay("--cluster-file", str(DEMO_CLUSTER)).status == 0


# --- files -----------------------------------------------------------------------------------------


def test_an_export_is_replayed_without_a_cluster(
    replaced: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "friday.jsonl"
    told = replaced.replay("--export", str(file))
    assert told.status == 0 and str(file) in told.out
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["pk"].partition("#")[0] for line in lines} >= {"EXPORT", "NODE", "INCIDENT", "EVENT"}
    live = replaced.json()

    def never(*_: object) -> None:
        raise InvalidInput("connected")

    monkeypatch.setattr(command, "connect", never)
    answer = replaced.bench.run("replay", "--events", str(file), "--json")
    assert (answer.status, answer.err) == (0, "")
    assert "defaults" in answer.json["policy"]["from"]
    for key in ("cluster", "since", "until", "events"):
        assert answer.json[key] == live[key]
    assert answer.json["totals"]["incidents"] == live["totals"]["incidents"]


def test_an_export_carries_large_events(tell: Tell, tmp_path: Path) -> None:
    story = tell()
    event = json.loads(events.xid(SICK, 13, story.world.now - 1))
    event["detail"]["message"] += " " * 5000
    story.world.send(json.dumps(event))
    file = tmp_path / "x.jsonl"
    assert story.json("--export", str(file)) == {"file": str(file), "events": 1}
    story.world.objects.bodies.clear()
    [line] = story.bench.run("replay", "--events", str(file), "--json").json["events"]
    assert line["now"]["outcome"] == "OBSERVED"


def test_an_export_needs_no_policy_and_leaves_no_half_file(replaced: Story, tmp_path: Path) -> None:
    replaced.world.gw.cluster = Cluster("demo", "us-east-1", "", Policy.default(), {})
    assert replaced.replay("--export", str(tmp_path / "ok.jsonl")).status == 0
    refused = replaced.replay("--export", str(tmp_path / "none" / "x.jsonl"))
    assert refused.status == 1 and "none" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["ok.jsonl"]


def test_the_window_of_a_file_may_be_narrowed(replaced: Story, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    replaced.replay("--export", str(file))
    everything = replaced.bench.run("replay", "--events", str(file), "--json").json["events"]
    middle = everything[2]["at"]
    some = replaced.bench.run("replay", "--events", str(file), "--since", middle, "--json").json
    assert [each["event_id"] for each in some["events"]] == [each["event_id"] for each in everything[2:]]
    assert [each["differs"] for each in some["events"]] == [[] for _ in some["events"]]
    before = replaced.bench.run("replay", "--events", str(file), "--until", middle, "--json").json
    assert len(before["events"]) == 2
    first = replaced.bench.run("replay", "--events", str(file), "--limit", "1", "--json").json
    assert (len(first["events"]), first["cut"]) == (1, True)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("no json", "line 1: must be a JSON object"),
        ('{"pk": "NODE#x", "n": 1' + "0" * 60 + "}", "line 1: must be a JSON object"),
        ("[]", "line 1: must be a row"),
        ('{"pk": 3}', "line 1: must be a row"),
        ('{"pk": "EVENT#x", "sk": "OUTCOME"}', "`at` must be epoch seconds"),
        ('{"pk": "NODE#x"}\n{"pk": "EVENT#x", "at": "noon"}', "line 2: `at` must be epoch seconds"),
        ('{"pk": "COUNT#x", "sk": "noon", "number": 1}', "a counter must have"),
    ],
)
def test_a_file_that_is_no_export_is_one_sentence(
    bench: Bench, tmp_path: Path, content: str, says: str
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(content)
    answer = bench.run("replay", "--events", str(file))
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"planaria: {file}") and says in answer.err and answer.err.count("\n") == 1


def test_wrong_input_is_one_sentence(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    for words, says in (
        ((), "--since"),
        (("--since", "yesterday"), "'yesterday'"),
        (("--since", "1h", "--until", "99999999"), "--until must be"),
        (("--events", "/no/such/file"), "cannot be read"),
        (("--events", str(tmp_path / "latin")), "UTF-8"),
        (("--events", "x", "--export", "y"), "one of them"),
        (("--since", "1h", "--cluster-file", "/no/such.yaml"), "/no/such.yaml"),
    ):
        answer = bench.run("replay", *words)
        assert (answer.status, answer.out) == (2, ""), words
        assert says in answer.err and answer.err.count("\n") == 1, answer.err


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        ("replay", ("--since", "1h", "--until", "2h"), "must be later than --since ("),
        ("replay", ("--since", "1h", "--until", "1h"), "must be later than --since ("),
        (
            "replay",
            ("--since", "2026-11-02", "--until", "2026-11-01"),
            "--until (2026-11-01T00:00:00.000Z) must",
        ),
        ("replay", ("--events", "FILE", "--since", "1h", "--until", "2h"), "must be later than --since ("),
        ("replay", ("--since", "9999-01-01"), "--since (9999-01-01T00:00:00.000Z) lies in the future"),
        ("replay", ("--since", "2026-11-03", "--until", "2026-11-04"), "lies in the future"),
        ("event", ("some-id", "--since", "9999-01-01"), "lies in the future"),
    ],
)
def test_a_window_that_cannot_be(
    bench: Bench, tmp_path: Path, command: str, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    answer = bench.run(
        command, *(str(tmp_path / "empty.jsonl") if word == "FILE" else word for word in words)
    )
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.err and answer.err.count("\n") == 1


def test_an_empty_file_and_an_empty_window(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("")
    answer = bench.run("replay", "--events", str(file))
    assert answer.status == 0 and answer.out.startswith("0 events, 0 would end otherwise")
    assert bench.run("replay", "--since", "1h", "--json").json["events"] == []


def test_how_long_ago_counts_from_the_clusters_clock(replaced: Story) -> None:
    assert replaced.bench.run("replay", "--since", "1h", "--json").json["totals"]["events"] > 5
    assert replaced.bench.run("replay", "--since", "0.1s", "--json").json["totals"]["events"] == 0


def test_a_window_of_ages_reads_only_the_hours_that_can_have_rows(
    replaced: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    listing = replaced.world.table.listing

    def listed(kind: str) -> list[Any]:
        asked.append(kind)
        return listing(kind)

    monkeypatch.setattr(replaced.world.table, "listing", listed)
    answer = replaced.bench.run("replay", "--since", "99999w", "--until", "9999-12-31", "--json")
    assert (answer.status, answer.json["totals"]["differ"]) == (0, 0)
    assert 720 < sum(kind.startswith("EVENT#") for kind in asked) < 725


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("30min", 1800),
        ("2h", 7200),
        ("1.5h", 5400),
        ("3d", 259_200),
        ("1w", 604_800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert command.moment(text, 1_000_000.0, "--since") == 1_000_000.0 - seconds


@pytest.mark.parametrize(
    "text",
    ["2026-11-01T06:14:05Z", "2026-11-01T06:14:05", "2026-11-01 07:14:05+01:00", "2026-11-01T06:14:05.000"],
)
def test_times(text: str) -> None:
    assert command.moment(text, 0.0, "--since") == 1_793_513_645.0


def test_ctrl_c_ends_it_cleanly(replaced: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[Any]:
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(replaced.world.gw.ledger, "events_since", interrupted)
    answer = replaced.replay("--export", str(tmp_path / "x.jsonl"))
    assert (answer.status, answer.out, answer.err) == (130, "", "Stopped.\n")
    assert list(tmp_path.glob("x.jsonl*")) == []


# --- for people --------------------------------------------------------------------------------------


def test_people_see_what_differs_and_by_which_policy(replaced: Story, tmp_path: Path) -> None:
    same = replaced.replay().out
    assert "the same" in same and "0 would end otherwise" in same and "running cluster demo" in same
    answer = {"kind": "xid", "code": "79", "action": "MONITOR", "reason": "only look"}
    file = edited(tmp_path / "cluster.yaml", catalog=[answer])
    shown = replaced.replay("--cluster-file", str(file), "--differences").out
    assert "OPENED REPLACE" in shown and "OBSERVED MONITOR" in shown and "only look" in shown
    assert NAMES[1] in shown and "cluster.yaml" in shown
    assert "incidents opened: 1 then, 0 now" in shown


# --- planaria event ID -------------------------------------------------------------------------------


def test_a_stored_event_explains_itself(tell: Tell) -> None:
    story = tell()
    text = events.xid(SICK, 79, story.world.now - 1)
    story.world.send(text)
    name = json.loads(text)["id"]
    [found] = story.bench.run("event", name, "--json").json
    assert (found["event_id"], found["outcome"], found["action"]) == (name, "OPENED", "REPLACE")
    assert found["parse"]["code"] == "79" and found["fault"]["kind"] == "xid"
    assert found["catalog"]["rule"] == "xid-79" and found["catalog"]["sources"]
    assert found["decision"]["reason"] == found["reason"] and found["decision"]["sources"]
    assert found["judgement"]["outcome"] == "OPENED" and found["judgement"]["mode"] == "act"
    shown = story.bench.run("event", name).out
    assert "xid-79: REPLACE" in shown and "sources:" in shown and "OPENED" in shown


def test_an_event_about_several_nodes_is_found_by_its_id(tell: Tell) -> None:
    story = tell()
    detail = {
        "service": "EC2", "eventTypeCategory": "scheduledChange", "statusCode": "open",
        "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", "eventArn": "arn:x", "communicationId": "1",
        "affectedEntities": [{"entityValue": node} for node in NODES[:2]],
    }  # fmt: skip
    story.world.send(events.event("aws.health", "AWS Health Event", detail, story.world.now, "health-1"))
    found = story.bench.run("event", "health-1", "--json").json
    assert [each["node_id"] for each in found] == NODES[:2]
    assert [each["parse"]["node_id"] for each in found] == NODES[:2]


def test_an_event_that_is_not_stored_is_one_sentence(tell: Tell) -> None:
    story = tell()
    answer = story.bench.run("event", "nothing")
    assert (answer.status, answer.out) == (2, "")
    assert "'nothing'" in answer.err and answer.err.count("\n") == 1


def test_an_event_whose_text_is_gone_still_has_its_outcome(tell: Tell) -> None:
    story = tell()
    facts = {"outcome": "OPENED", "node_id": SICK, "event_id": "bare"}
    story.world.gw.ledger.record_outcome("bare", story.world.now, facts)
    [found] = story.bench.run("event", "bare", "--json").json
    assert (found["outcome"], found["parse"]) == ("OPENED", None)
    assert "not stored" in story.bench.run("event", "bare").out
    story.world.gw.ledger.record_outcome("bare", story.world.now, {**facts, "event_key": "events/x"})
    story.world.objects = MemoryObjects()
    lost = story.bench.run("event", "bare")
    assert lost.status == 1 and lost.err.count("\n") == 1
