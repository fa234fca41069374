"""`planaria quarantine` and `quarantine release`, and what an incident tells of its ladder."""

import pytest

from planaria.core.incident import Step
from planaria.core.quarantine import KEPT_SECONDS, Found, Quarantine
from tests.cli.conftest import NODES, NOW, Bench

HOST = "h-0bad"


def put(
    bench: Bench, node: str = NODES[2], host: str = HOST, reason: str = "GPU 3: memory test failed"
) -> str:
    bench.add_nodes()
    bench.gateways.ledger.note_node(
        node, {"host": host, "instance_type": "p5.48xlarge", "zone": "us-east-1a"}
    )
    incident = f"{node}-1793610845000"
    Quarantine(bench.gateways.table).put(bench.node(node), Found(reason, incident, NOW))
    return incident


def test_nothing_is_quarantined(bench: Bench) -> None:
    bench.add_nodes()
    assert bench.run("quarantine", "--json").json == []
    assert bench.run("quarantine").out == "Nothing is quarantined.\n"


def test_an_instance_and_its_host(bench: Bench) -> None:
    incident = put(bench)
    documents = {document["id"]: document for document in bench.run("quarantine", "--json").json}
    assert documents[NODES[2]] == {
        "id": NODES[2],
        "of": "instance",
        "stands": True,
        "node_id": NODES[2],
        "host": HOST,
        "name": "demo-3",
        "instance_type": "p5.48xlarge",
        "zone": "us-east-1a",
        "reason": "GPU 3: memory test failed",
        "incident_id": incident,
        "at": "2026-11-02T09:14:05.000Z",
        "until": "2026-12-02T09:14:05.000Z",
        "released": None,
    }
    assert documents[HOST]["of"] == "host" and len(documents) == 2
    shown = bench.run("quarantine").out
    for words in (NODES[2], HOST, "demo-3", "memory test failed", "2026-12-02"):
        assert words in shown, words


def test_a_person_releases_it(bench: Bench) -> None:
    put(bench)
    answer = bench.run("quarantine", "release", NODES[2], "--reason", "the board was changed")
    assert (answer.status, answer.out) == (0, f"Released: {NODES[2]}, {HOST}.\n")
    assert bench.run("quarantine", "--json").json == []
    ended = bench.run("quarantine", "--all", "--json").json
    assert {document["stands"] for document in ended} == {False}
    assert {document["released"]["reason"] for document in ended} == {"the board was changed"}
    assert "released by" in bench.run("quarantine", "--all").out
    assert "quarantined" not in bench.node(NODES[2])
    again = bench.run("quarantine", "release", NODES[2])
    assert again.status == 2 and "is not quarantined; `planaria quarantine` lists what is" in again.err


def test_as_json(bench: Bench) -> None:
    put(bench, host="")
    document = bench.run("quarantine", "release", NODES[2], "--json").json
    assert document["released"] == [NODES[2]] and document["at"].endswith("Z")


def test_what_is_over_is_not_listed(bench: Bench) -> None:
    put(bench, host="")
    bench.clock.advance(KEPT_SECONDS + 60)
    assert bench.run("quarantine", "--json").json == []
    assert "over since 2026-12-02" in bench.run("quarantine", "--all").out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("release", "i-nonsense"), "is not quarantined"),
        (("release", NODES[0], "--reason", "x" * 300), "at most 256 characters"),
        (("--all", "release", NODES[0]), "ptions stand after the command"),
    ],
)
def test_bad_input(bench: Bench, words: tuple[str, ...], says: str) -> None:
    put(bench)
    answer = bench.run("quarantine", *words)
    assert answer.status == 2 and says in answer.err


def test_control_characters_of_a_reason_do_not_reach_the_terminal(bench: Bench) -> None:
    put(bench, reason="GPU\x1b[31m 3\x07")
    assert "\x1b" not in bench.run("quarantine").out and "\x07" not in bench.run("quarantine").out


def test_an_incident_tells_what_it_has_gone_on_from(bench: Bench) -> None:
    bench.add_nodes()
    name = bench.add_incident()
    ledger = bench.gateways.ledger
    left = {"action": "RESET", "to": "REBOOT", "reason": "the driver hangs", "at": NOW + 12.0}
    ledger.note_incident(name, {"climbed": [left], "action": "REBOOT"})
    ledger.step(name, Step.TO_REBOOT, NOW + 12.0, reason="the driver hangs")
    ledger.step(name, Step.VERIFIED, NOW + 13.0, suite="deep", unchecked="not checked: efa (no EFA device)")
    document = bench.run("incident", name, "--json").json
    assert document["climbed"] == [{**left, "at": "2026-11-02T09:14:17.000Z"}]
    shown = bench.run("incident", name).out
    for words in ("went on to reboot", "the driver hangs", "node verified", "deep check"):
        assert words in shown, words
