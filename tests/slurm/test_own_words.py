"""Nodes that Slurm keeps out of work by its own words, in the answers of every version."""

import csv

import pytest

from planaria.core.catalog import codes as catalogued
from planaria.core.catalog import look_up
from planaria.slurm import reasons, telling
from tests.slurm.programs import JSON_VERSIONS, Recorded

PERSON = "disk = bad, ask ops"


def recorded(version: str, words: str, writer: str = "root", with_json: bool = True) -> Recorded:
    """demo-4, which a person has drained, with these words in place of hers."""
    found = Recorded(version, with_json)

    def said(printed: str) -> str:
        printed = printed.replace(f"{PERSON} [root@", f"{words} [{writer}@").replace(PERSON, words)
        return printed.replace('"reason_set_by_user": "root"', f'"reason_set_by_user": "{writer}"')

    found.cut = said
    return found


@pytest.mark.parametrize(
    ("version", "with_json"), [*((each, True) for each in JSON_VERSIONS), ("22.05", False)]
)
def test_they_are_told_with_their_code_and_their_time(version: str, with_json: bool) -> None:
    told = telling.tell_nodes(recorded(version, "Kill task failed", "slurmadm", with_json).slurm, [])
    assert told == {
        "demo-4": {
            "state": "DRAINED", "node_id": "", "reason": "Kill task failed", "jobs": [],
            "codes": ["Slurm/KillTaskFailed"], "since": 1796071154.0,
        }
    }  # fmt: skip


@pytest.mark.parametrize("words", [PERSON, "planaria:i-4.1", "Kill task failed twice, RMA", ""])
def test_what_is_somebodys_or_ours_is_not_told(words: str) -> None:
    assert telling.tell_nodes(recorded("24.05", words).slurm, []) == {}


def test_slurms_words_from_a_person_are_not_told() -> None:
    assert telling.tell_nodes(recorded("24.05", "Kill task failed", "ada").slurm, []) == {}


def test_a_node_with_a_word_of_a_later_slurm_is_not_told() -> None:
    later = recorded("24.05", "Kill task failed")
    drained, said = '"DRAIN"', later.cut
    later.cut = lambda printed: said(printed).replace(drained, f'{drained}, "A_FLAG_OF_LATER"')
    assert telling.tell_nodes(later.slurm, []) == {}


def test_several_words_are_several_codes_and_no_drain_is_needed_for_less_than_configured() -> None:
    words = "Low RealMemory (reported:1 < 100.00% of configured:2), gres/gpu count too low (0 < 8)"
    less = recorded("24.05", words)
    said = less.cut
    less.cut = lambda printed: said(printed).replace('"DRAIN"', '"INVALID_REG"')
    told = telling.tell_nodes(less.slurm, [])["demo-4"]
    assert told["codes"] == ["Slurm/LowRealMemory", "Slurm/GresCount"]
    assert (told["state"], told["words"]) == ("UNKNOWN", "IDLE+INVALID_REG")


def test_every_word_of_slurm_has_an_answer_of_its_own() -> None:
    with reasons.OWN_REASONS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    known = {f"Slurm/{row['code']}" for row in rows}
    assert len(known) == len(rows)
    for code in known:
        assert look_up("node_condition", code).rule not in ("slurm-other", "condition-unknown"), code
    asked = {code for code in catalogued("node_condition") if code.startswith("Slurm/")}
    assert asked - known == {"Slurm/*", "Slurm/Low*"}
