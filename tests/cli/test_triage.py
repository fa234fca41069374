"""triage --observe: the exit status and what stands on stdout; what is judged is tested in tests/core."""

import io
import json
import sys
from pathlib import Path

import pytest

from planaria.core.errors import InvalidInput
from tests.cli.conftest import Bench

KEYS = {
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
}
NODE = "i-0123456789abcdef0"


@pytest.fixture
def spot(tmp_path: Path) -> Path:
    path = tmp_path / "spot.json"
    event = {
        "id": "e1",
        "source": "aws.ec2",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "time": "2026-11-02T06:34:05Z",
        "detail": {"instance-id": NODE, "instance-action": "terminate"},
    }
    path.write_text(json.dumps(event))
    return path


def test_json(bench: Bench, spot: Path) -> None:
    answer = bench.run("triage", "--observe", "--json", str(spot))
    (document,) = answer.json
    assert (answer.status, answer.err) == (0, "")
    assert set(document) == KEYS
    assert (document["file"], document["node_id"]) == (str(spot), NODE)
    assert (document["kind"], document["outcome"]) == ("spot_interruption", "OPENED")


def test_json_explains_with_iso_times(bench: Bench, spot: Path) -> None:
    (document,) = bench.run("triage", "--observe", "--json", str(spot)).json
    assert document["parse"]["time"] == "2026-11-02T06:34:05.000Z"
    assert document["fault"]["deadline"] == "2026-11-02T06:36:05.000Z"
    assert document["catalog"]["rule"] == "spot-interruption" and document["catalog"]["sources"]
    assert document["judgement"]["mode"] == "act"


@pytest.mark.parametrize("time", [1e14, -1e14, "9999-12-31T23:59:59.9999Z"])
def test_times_that_no_calendar_has(bench: Bench, tmp_path: Path, time: object) -> None:
    event = {"id": "e", "source": "aws.ec2", "detail-type": "x", "time": time}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(event))
    answer = bench.run("triage", "--observe", "--json", str(path))
    assert answer.status == 0 and answer.json[0]["outcome"] == "OBSERVED"
    assert bench.run("triage", "--observe", str(path)).status == 0


def test_a_single_event_is_explained_to_people(bench: Bench, spot: Path) -> None:
    shown = bench.run("triage", "--observe", str(spot)).out
    for word in ("OPENED REPLACE", "parse", "fault", "spot-interruption: REPLACE", "sources:", "outcome"):
        assert word in shown
    assert "seen 2026-11-02T06:34:05.000Z" in shown and "gone by 2026-11-02T06:36:05.000Z" in shown
    assert "parse" not in bench.run("triage", "--observe", "--brief", str(spot)).out


def test_several_events_are_a_table_unless_explained(bench: Bench, spot: Path) -> None:
    two = (str(spot), str(spot))
    assert "parse" not in bench.run("triage", "--observe", *two).out
    assert bench.run("triage", "--observe", "--explain", *two).out.count("sources:") == 2


def test_what_is_invalid_is_explained_too(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    path.write_text("no json")
    shown = bench.run("triage", "--observe", str(path)).out
    assert "INVALID" in shown and "the event is not JSON" in shown and "fault" not in shown


def test_the_cluster_file_has_two_names(bench: Bench, spot: Path, tmp_path: Path) -> None:
    for option in ("--cluster", "--cluster-file"):
        refused = bench.run("triage", "--observe", option, str(tmp_path / "none.yaml"), str(spot))
        assert refused.status == 2 and "none.yaml" in refused.err


def test_a_table_for_people(bench: Bench, spot: Path) -> None:
    shown = bench.run("triage", "--observe", str(spot)).out
    assert NODE in shown
    assert "OPENED" in shown


def test_what_a_file_says_is_never_a_failure(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    path.write_text("no json")
    answer = bench.run("triage", "--observe", "--json", str(path))
    assert (answer.status, answer.json[0]["outcome"], answer.json[0]["event_id"]) == (0, "INVALID", None)


def test_a_missing_file_is_one_sentence_and_nothing_else(bench: Bench, spot: Path) -> None:
    answer = bench.run("triage", "--observe", "--json", str(spot), "/no/such/file.json")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err == "planaria: /no/such/file.json: cannot be read (No such file or directory).\n"


def test_a_folder_is_no_file(bench: Bench, tmp_path: Path) -> None:
    assert bench.run("triage", "--observe", str(tmp_path)).status == 2


def test_sequence_remembers_from_file_to_file(bench: Bench, spot: Path) -> None:
    twice = (str(spot), str(spot))
    alone = bench.run("triage", "--observe", "--json", *twice).json
    memory = bench.run("triage", "--observe", "--json", "--sequence", *twice).json
    assert [each["outcome"] for each in alone] == ["OPENED", "OPENED"]
    assert [each["outcome"] for each in memory] == ["OPENED", "DUPLICATE"]


def test_inventory_and_cluster(bench: Bench, spot: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.json"
    inventory.write_text("[]")
    answer = bench.run("triage", "--observe", "--json", "--inventory", str(inventory), str(spot))
    assert answer.json[0]["outcome"] == "NOT_MANAGED"
    broken = tmp_path / "cluster.yaml"
    broken.write_text("name: [")
    refused = bench.run("triage", "--observe", "--cluster", str(broken), str(spot))
    assert refused.status == 2
    assert "cluster.yaml" in refused.err


def test_an_event_from_stdin(bench: Bench, spot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def piped() -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(spot.read_bytes())))

    piped()
    (document,) = bench.run("triage", "--observe", "--json", "-").json
    assert (document["file"], document["kind"]) == ("-", "spot_interruption")
    piped()
    answer = bench.run("triage", "--observe", "-", "-")
    assert (answer.status, answer.err) == (2, "planaria: - is stdin, which can be read only once.\n")
    monkeypatch.setattr(sys, "stdin", None)
    assert bench.run("triage", "--observe", "-").status == 2


def test_without_observe_nothing_is_judged(bench: Bench, spot: Path) -> None:
    answer = bench.run("triage", str(spot))
    assert answer.status == 2
    assert "--observe" in answer.err


def test_no_credentials_are_needed(bench: Bench, spot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise InvalidInput("connected")

    monkeypatch.setattr("planaria.cli.target.connect", never)
    assert bench.run("triage", "--observe", str(spot)).status == 0
