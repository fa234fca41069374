"""The rules of the ladder: what follows a repair that did not help, and what becomes of the attempt."""

from typing import Any

import pytest

from planaria.core import ladder
from planaria.core.errors import PermanentError
from planaria.core.fault import Action
from planaria.core.policy import Policy

T = 1_772_600_760.0
NODE = "i-0aaaaaaaaaaaaaaa1"
POLICY = Policy()
REBOOTED = {"reboot_sent_at": T + 60, "acts": {"reboot": T + 60}, "ready_at": T + 90}


def row(action: str, **more: Any) -> dict[str, Any]:
    return {"node_id": NODE, "session": 1, "action": action, "verb": "", "opened_at": T, **more}


def bad(**more: Any) -> dict[str, Any]:
    """Rebooted, back, and failed its check."""
    return row("REBOOT", **REBOOTED, verifying={"end": "failed"}, **more)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (row("RESET"), Action.REBOOT),
        (row("RESET", verb="reset"), Action.REBOOT),
        (row("RESET", gone=True), Action.REPLACE),
        (row("REBOOT", gone=True), Action.REPLACE),
        (row("REBOOT", state="terminated"), Action.REPLACE),
        (bad(), Action.REPLACE),
        (bad(replacements=[T - 60, T - 600, T - 100_000]), Action.REPLACE),
        (row("REBOOT", **{**REBOOTED, "ready_at": T - 5}), Action.REPLACE),
    ],
)
def test_what_follows(before: dict[str, Any], after: Action) -> None:
    climb = ladder.following(before, "it is broken", POLICY, T + 300)
    assert climb.action is after and climb.reason.startswith("it is broken")


@pytest.mark.parametrize(
    ("before", "policy", "says"),
    [
        (row("REPLACE"), POLICY, "it is broken"),
        (row("DRAIN"), POLICY, "it is broken"),
        (row("RESET"), Policy(escalate_to=Action.RESET), "escalate_to RESET allows no reboot"),
        (bad(), Policy(escalate_to=Action.REBOOT), "escalate_to REBOOT allows no replacement"),
        (bad(verb="reboot"), POLICY, "a person ordered the reboot, which never becomes a replacement"),
        (row("RESET", verb="reset", gone=True), POLICY, "a person ordered the reset"),
        (row("REBOOT"), POLICY, "no proof"),
        (row("REBOOT", reboot_sent_at=T - 60), POLICY, "no proof"),
        (row("REBOOT", **REBOOTED), POLICY, "no proof"),
        (row("REBOOT", **REBOOTED, verifying={"end": "unknown"}), POLICY, "no proof"),
        (bad(replacements=[T - 60, T - 600, T - 6000]), POLICY, "3 new instances within 24 h"),
        (row("RESET", gone=True, replacements=[T, T, T]), POLICY, "a person looks"),
    ],
)
def test_what_a_person_must_decide(before: dict[str, Any], policy: Policy, says: str) -> None:
    with pytest.raises(PermanentError) as refused:
        ladder.following(before, "it is broken", policy, T + 300)
    assert says in str(refused.value) and str(refused.value).startswith("it is broken")
    if before["action"] in ("RESET", "REBOOT") and "replacements" not in before:
        assert f"planaria replace {NODE}" in str(refused.value)


@pytest.mark.parametrize(
    ("attempt", "word"),
    [
        (row("RESET"), "refused"),
        (row("RESET", resetting={"ticket": "c-1"}), "unknown"),
        (row("RESET", resetting={"end": "failed"}), "failed"),
        (row("RESET", resetting={"end": "unknown"}), "unknown"),
        (row("RESET", resetting={"end": "passed"}), "unknown"),
        (row("RESET", resetting={"end": "passed"}, verifying={"end": "failed"}), "failed"),
        (row("RESET", resetting={"end": "passed"}, verifying={"end": "unknown"}), "unknown"),
        (row("REBOOT"), "refused"),
        (row("REBOOT", reboot_sent_at=T - 60, ready_at=T - 30), "refused"),
        (row("REBOOT", reboot_sent_at=T + 60), "failed"),
        (row("REBOOT", **REBOOTED), "unknown"),
        (bad(), "failed"),
    ],
)
def test_what_becomes_of_an_attempt(attempt: dict[str, Any], word: str) -> None:
    assert ladder.result_of(attempt, "because") == f"{word}: because"


def test_the_result_is_noted_on_this_sessions_own_act_alone() -> None:
    tried = {"reboot": {"at": T + 60, "kind": "xid"}, "reset": {"at": T - 60, "kind": "xid"}}
    change = ladder.remembered(bad(tried=tried), "failed: because")
    assert change == {"tried": {**tried, "reboot": {**tried["reboot"], "result": "failed: because"}}}
    assert ladder.remembered(row("RESET", tried=tried), "failed: because") == {}, "an earlier session's"
    assert ladder.remembered(bad(tried=tried, verb="reboot"), "passed") == {}, "a person's order"
    assert ladder.remembered(bad(), "passed") == {}
    assert ladder.remembered(bad(tried=change["tried"]), "failed: because") == {}, "noted already"


def test_when_the_session_did_the_act() -> None:
    assert ladder.acted_at(bad(), Action.REBOOT) == T + 60
    assert ladder.acted_at(bad(), Action.RESET) == 0.0
    assert ladder.acted_at(row("REBOOT", acts={"reboot": T - 1}), Action.REBOOT) == 0.0
    assert ladder.acted_at(row("REPLACE"), Action.REPLACE) == 0.0


def test_what_was_tried_in_words() -> None:
    steps = [{"action": "RESET", "reason": "it hangs"}, {"action": "REBOOT", "reason": "it is silent"}]
    assert (
        ladder.tried_so_far(row("REPLACE", climbed=steps))
        == "a GPU reset (it hangs), a reboot (it is silent)"
    )
    assert ladder.left_last(row("REPLACE", climbed=steps)) == "reboot"
    assert ladder.tried_so_far(row("RESET")) == ladder.left_last(row("RESET")) == ""
