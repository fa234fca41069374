"""`planaria breaker`, `planaria breaker close`, and --override-breaker."""

import pytest

from planaria.core.breaker import KEY, Breaker
from tests.cli.conftest import NODES, NOW, Bench

REASON = "the bad driver is rolled back"


def fill(bench: Bench) -> None:
    """The demo's cap is two: demo-1 and demo-2 are removed, demo-3 is refused and held."""
    bench.add_nodes()
    for name in ("demo-1", "demo-2"):
        assert bench.run("replace", name).status == 0
    refused = bench.run("replace", "demo-3")
    assert refused.status == 1
    assert f"planaria replace {NODES[2]} --override-breaker" in refused.err
    assert "planaria breaker close --reason" in refused.err
    held = {"held": {"xid": {"event": "{}"}}, "held_reason": "breaker: full", "held_since": NOW}
    bench.gateways.ledger.note_node(NODES[2], held)


def test_a_breaker_that_nothing_has_used(bench: Bench) -> None:
    bench.add_nodes()
    assert bench.run("breaker", "--json").json == {
        "state": "closed",
        "max_removals": 2,
        "max_per_detector": 2,
        "window_seconds": 3600.0,
        "removals": [],
        "tripped": [],
        "closed_by_hand": None,
        "held": [],
    }
    assert "The breaker is closed: 0 of 2 removals used within 1 h." in bench.run("breaker").out


def test_who_was_removed_why_it_is_tripped_and_who_is_held(bench: Bench) -> None:
    fill(bench)
    document = bench.run("breaker", "--json").json
    assert document["state"] == "tripped"
    assert [(r["name"], r["node_id"], r["detector"]) for r in document["removals"]] == [
        ("demo-1", NODES[0], "console"), ("demo-2", NODES[1], "console"),
    ]  # fmt: skip
    assert all(r["incident_id"].startswith(r["node_id"]) for r in document["removals"])
    assert all(0 <= r["age_seconds"] < 5 and r["at"].endswith("Z") for r in document["removals"])
    [tripped] = document["tripped"]
    assert (tripped["who"], tripped["probe"]) == ("fleet", None)
    assert "2 of 2 removals of the fleet used" in tripped["waits"]
    assert document["held"] == [
        {"node_id": NODES[2], "name": "demo-3", "since": "2026-11-02T09:14:05.000Z", "why": "breaker: full"}
    ]
    shown = bench.run("breaker").out
    for words in (
        "tripped",
        "2 of 2 removals",
        "demo-1",
        "console",
        NODES[2],
        "breaker: full",
        "--override-breaker",
    ):
        assert words in shown, words


def test_half_open_names_what_it_waits_for(bench: Bench) -> None:
    fill(bench)
    bench.clock.advance(3700)
    assert bench.run("replace", "demo-3").status == 0
    probe = f"{NODES[2]}-{bench.node(NODES[2])['session']}"
    document = bench.run("breaker", "--json").json
    assert (document["state"], document["tripped"][0]["probe"]) == ("half-open", probe)
    assert f"waits for incident {probe}" in bench.run("breaker").out
    assert f"half-open: waits for incident {probe}" in bench.run("replace", "demo-4").err


def test_a_person_closes_it(bench: Bench) -> None:
    fill(bench)
    answer = bench.run("breaker", "close", "--reason", REASON)
    assert answer.status == 0
    assert "2 removals forgotten; 1 held node will be judged anew within a minute" in answer.out
    closed = bench.gateways.table.get(*KEY) or {}
    assert closed["closed"]["reason"] == REASON and closed["removals"] == {} and "tripped" not in closed
    assert bench.run("replace", "demo-3").status == 0
    shown = bench.run("breaker").out
    assert REASON in shown and "The breaker is closed: 1 of 2" in shown


def test_close_in_json_says_what_was_before(bench: Bench) -> None:
    fill(bench)
    document = bench.run("breaker", "close", "--reason", REASON, "--json").json
    assert document["closed"]["reason"] == REASON and document["closed"]["by"]
    assert document["before"]["state"] == "tripped" and len(document["before"]["removals"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("close",), "Missing option '--reason'"),
        (("close", "--reason", " "), "--reason must say why"),
        (("close", "--reason", "x" * 300), "at most 256 characters"),
        (("--json", "close", "--reason", REASON), "options stand after the command"),
        (("open",), "No such command 'open'"),
        (("--fast",), "No such option"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(
    bench: Bench, words: tuple[str, ...], said: str
) -> None:
    fill(bench)
    before = bench.gateways.table.get(*KEY)
    answer = bench.run("breaker", *words)
    assert answer.status == 2 and answer.out == ""
    assert said.lower() in answer.err.lower() and answer.err.count("\n") == 1
    assert bench.gateways.table.get(*KEY) == before


def test_an_override_goes_on_and_is_counted(bench: Bench) -> None:
    fill(bench)
    answer = bench.run("replace", "demo-3", "--override-breaker", "--json")
    assert answer.status == 0
    head, _ = bench.gateways.ledger.incident(answer.json["incident_id"])
    assert head is not None and head["override_breaker"] is True
    assert answer.json["incident_id"] in bench.gateways.breaker.status(bench.clock.now())["removals"]
    for verb in ("reboot", "remove"):
        assert "--override-breaker" in bench.run(verb, "--help").out


def test_without_the_option_the_document_is_as_it_was(bench: Bench) -> None:
    bench.add_nodes()
    bench.run("reboot", "demo-1")
    bench.run("reboot", "demo-2", "--override-breaker")
    documents = list(bench.workflows.inputs.values())
    assert "override_breaker" not in documents[0] and documents[1]["override_breaker"] is True


def test_the_limits_are_those_that_the_deployment_has_noted(bench: Bench) -> None:
    """On AWS the command line has no cluster file."""
    fill(bench)
    bench.gateways.breaker.tidy(bench.clock.now())
    bench.gateways.breaker = Breaker(bench.gateways.table, 99, 5.0)
    document = bench.run("breaker", "--json").json
    assert (document["max_removals"], document["window_seconds"]) == (2, 3600.0)
