"""Which numbers can be true, and what a list of steps tells."""

import json

from planaria.core.listed_steps import copies
from planaria.core.manifest import NO_STEP, Format, Lineage
from planaria.core.saved_step import StepCopy, StepState, Tier, newest_first, without_implausible


def copy(step: int, parent: int = NO_STEP, attempt: int = 1, **facts: object) -> StepCopy:
    lineage = Lineage("train", attempt, parent)
    told = {"state": StepState.COMPLETE, "lineage": lineage, "digest": "d", **facts}
    return StepCopy(step=step, tier=Tier.FSX, place=f"/fsx/train/step-{step}", **told)  # type: ignore[arg-type]


def usable(*given: StepCopy) -> list[int]:
    return [each.step for each in without_implausible(given) if each.usable]


def test_steps_of_a_run_are_plausible() -> None:
    assert usable(copy(10), copy(500_000), copy(1_000_000, 500_000)) == [10, 500_000, 1_000_000]
    assert usable(copy(50_000_000), copy(50_001_000)) == [50_000_000, 50_001_000]
    assert usable(copy(10**9)) == [10**9]


def test_a_number_that_no_run_reaches() -> None:
    (told,) = without_implausible([copy(10**15, 10**15 - 10)])
    assert told.state is StepState.FOREIGN and "higher than any run" in told.reason


def test_a_number_far_above_the_others_needs_a_parent() -> None:
    assert usable(copy(500), copy(2_000_000)) == [500]
    assert usable(copy(500), copy(2_000_000, parent=1_999_000)) == [500, 2_000_000]


def test_one_cannot_continue_what_comes_after_it() -> None:
    assert usable(copy(10, parent=10)) == []
    assert usable(copy(10, parent=20)) == []
    assert usable(copy(10, parent=0)) == [10]


def test_what_is_not_usable_keeps_its_reason() -> None:
    corrupt = copy(10**15, state=StepState.CORRUPT, reason="broken")
    assert without_implausible([corrupt]) == [corrupt]


def test_an_implausible_step_is_not_sealed_either() -> None:
    whole = copy(10**15, state=StepState.FOREIGN, lineage=None, digest="", format=Format.DCP)
    assert whole.sealable
    (told,) = without_implausible([whole])
    assert not told.sealable


def test_a_list_has_a_later_attempts_steps_first_and_unknown_ones_among_them() -> None:
    unknown = copy(25, lineage=None, digest="", state=StepState.PARTIAL)
    listed = newest_first([copy(900, attempt=1), copy(20, attempt=2), unknown, copy(30, attempt=2)])
    assert [each.step for each in listed] == [30, 25, 20, 900]


def test_what_a_node_lists_is_read_back() -> None:
    given = [
        copy(20, 10, saved_at=5.0, touched_at=6.0, size=3, format=Format.DCP, pinned="why"),
        copy(30, state=StepState.PARTIAL, lineage=None, digest="", reason="half"),
    ]
    told = json.loads(json.dumps({"steps": [each.document() for each in given]}))
    assert copies(told, "train", "/fsx/train") == given
