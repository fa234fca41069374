"""The choice of a resume point over all tiers, and the line of a job's attempts that it follows."""

from dataclasses import replace

import pytest

from planaria.core import lineage
from planaria.core.checkpoints import NO_CHECKPOINT, choose, choose_copy
from planaria.core.errors import PermanentError
from planaria.core.manifest import NO_STEP, Lineage
from planaria.core.saved_step import StepCopy, StepState, Tier

D, C, P, F, X = StepState.DURABLE, StepState.COMPLETE, StepState.PARTIAL, StepState.FOREIGN, StepState.CORRUPT


def saved(
    step: int,
    attempt: int = 1,
    parent: int = NO_STEP,
    tier: Tier = Tier.FSX,
    state: StepState = C,
    reason: str = "",
    job: str = "job",
) -> StepCopy:
    known = state not in (P, F)
    return StepCopy(
        step,
        tier,
        state,
        f"{tier.value}/step-{step}",
        reason,
        lineage=Lineage(job, attempt, parent) if known else None,
        saved_at=1000.0 * attempt + step if known else None,
        digest=f"{job}/{attempt}/{step}" if known else "",
    )


def aside(copy: StepCopy) -> dict[str, dict[str, object]]:
    return {str(copy.step): {"why": "it fails from there", "copy": copy.saved_at}}


BRANCH = [saved(500), saved(1000), saved(1500), saved(1200, 2, 1000), saved(1300, 2, 1200)]
"""Attempt 2 went back to 1000, and 1500 is left behind."""


def chosen(copies: list[StepCopy], **options: object) -> tuple[int, int]:
    choice = choose_copy(copies, "job", **options)  # type: ignore[arg-type]
    assert choice.copy is not None
    return lineage.key_of(choice.copy)


def test_a_stale_higher_step_is_never_chosen() -> None:
    assert chosen(BRANCH) == (2, 1300)
    assert choose_copy(BRANCH).passed_over == ("step 1500 is of attempt 1, from where no later one went on",)
    bad = [replace(copy, state=X) if copy.lineage and copy.lineage.attempt == 2 else copy for copy in BRANCH]
    assert chosen(bad) == (1, 1000), "also where all of the present attempt is bad"


def test_a_higher_step_of_another_job_is_never_chosen() -> None:
    choice = choose_copy([saved(500), saved(9000, job="other")], "job")
    assert choice.step == 500
    assert (
        choice.why
        == "newest complete step; passed over: step 9000 is foreign (it belongs to the job 'other')"
    )
    with pytest.raises(PermanentError, match="no complete checkpoint; step 9000 is foreign"):
        choose_copy([saved(9000, job="other")], "job")


def test_the_line_of_many_attempts() -> None:
    copies = [
        saved(100), saved(200), saved(300),
        saved(250, 2, 200), saved(350, 2, 250),
        saved(220, 3, 200), saved(400, 3, 220),
        saved(450, 4, 400),
    ]  # fmt: skip
    assert lineage.line(copies) == [(4, 450), (3, 400), (3, 220), (1, 200), (1, 100)]
    assert lineage.line(copies, attempt=2) == [(2, 350), (2, 250), (1, 200), (1, 100)]
    assert lineage.line(copies, {5: 250}, attempt=5) == [(2, 250), (1, 200), (1, 100)]


def test_the_start_of_an_attempt_is_known_when_its_first_steps_are_gone() -> None:
    """Step 1600 says that it came after 1200; only the job's row says that its attempt began at 500."""
    copies = [saved(500), saved(1000), saved(1600, 2, 1200)]
    bad = [*copies[:2], replace(copies[2], state=X)]
    assert chosen(bad) == (1, 1000)
    assert chosen(bad, starts={2: 500}) == (1, 500)


def test_without_lineage_the_number_counts() -> None:
    plain = [replace(saved(step), lineage=None, digest="") for step in (10, 30, 20)]
    assert chosen(plain) == (0, 30)
    assert chosen([*plain, saved(25, 1, 20)]) == (1, 25)
    assert chosen([*plain, saved(25, 1, 20, state=X)]) == (0, 20)


def test_the_nearest_tier_that_has_it() -> None:
    near, far = saved(10), saved(10, tier=Tier.S3, state=D)
    memory = saved(10, tier=Tier.PEER)
    choice = choose_copy([far, memory, near])
    assert [copy.tier for copy in choice.copies] == [Tier.PEER, Tier.FSX, Tier.S3]
    bad = replace(near, state=X, reason="a bit is wrong")
    choice = choose_copy([far, bad])
    assert choice.copies == (far,)
    assert choice.why == "newest complete step (in s3)"


def test_two_copies_that_are_not_the_same_are_told_apart() -> None:
    near, far = saved(10), replace(saved(10, tier=Tier.S3, state=D), digest="another")
    assert choose_copy([near, far]).copies == (near,)


def test_it_falls_back_step_by_step_and_says_why() -> None:
    copies = [
        saved(50, state=P, reason="the save did not finish"),
        saved(40, state=X, reason="the file a is missing"),
        saved(40, tier=Tier.S3, state=X, reason="the object a is missing"),
        saved(30, tier=Tier.S3, state=D),
        saved(20),
    ]
    choice = choose_copy(copies)
    assert choice.step == 30
    assert set(choice.passed_over) == {
        "step 50 is partial in fsx (the save did not finish)",
        "step 40 is corrupt in fsx (the file a is missing)",
        "step 40 is corrupt in s3 (the object a is missing)",
    }


def test_what_is_set_aside_is_passed_over_in_every_tier() -> None:
    copies = [saved(20), saved(30), saved(30, tier=Tier.S3, state=D)]
    choice = choose_copy(copies, aside=aside(copies[1]))
    assert choice.step == 20
    assert choice.passed_over == ("step 30 is set aside (it fails from there)",)
    anew = replace(copies[1], saved_at=9e9, digest="anew")
    assert choose_copy([copies[0], anew], aside=aside(copies[1])).step == 30, "another copy was saved since"
    with pytest.raises(
        PermanentError, match=r"the job fails from every checkpoint that is kept \(step 20 is set"
    ):
        choose_copy(copies[:1], aside=aside(copies[0]))


def test_step_0_is_the_truth_only_where_nothing_was_ever_complete() -> None:
    for nothing in ([], [saved(10, state=P)], [saved(10, state=P), saved(10, tier=Tier.S3, state=P)]):
        choice = choose_copy(nothing)
        assert (choice.step, choice.copy) == (NO_CHECKPOINT, None)
        assert "starts from step 0" in choice.why
    for state in (X, F):
        with pytest.raises(PermanentError, match="a person must decide whether to start from step 0"):
            choose_copy([saved(10, state=P), saved(20, state=state)])


def test_only_what_is_left_behind_is_left() -> None:
    copies = [saved(1500), replace(saved(1200, 2, 1000), state=X)]
    with pytest.raises(PermanentError, match=r"step 1500 is of attempt 1.*a person must decide"):
        choose_copy(copies)


def test_a_long_reason_has_an_end() -> None:
    choice = choose_copy([saved(1), *(saved(step, state=P) for step in range(10, 200))])
    assert choice.why.endswith(", and 178 more")
    assert choice.passed_over[0] == "step 199 is partial"


def test_entries_of_one_list() -> None:
    entries = [
        {"step": 10, "state": "complete", "reason": "", "at": 1.0},
        {"step": 20, "state": "complete", "reason": "", "saved_at": 2.0, "attempt": 1, "parent_step": 10},
        {"step": 30, "state": "partial", "reason": "x"},
    ]
    assert choose(entries) == (20, "newest complete step; passed over: step 30 is partial (x)")
    assert choose(entries, {"20": {"why": "y", "copy": 2.0}})[0] == 10


@pytest.mark.parametrize(
    ("saved_at", "expected"),
    [(5.0, (0, -1)), (50.0, (0, -1)), (150.0, (1, 10)), (250.0, (2, 20)), (1e9, (2, 20))],
)
def test_a_step_that_was_saved_without_us_is_of_the_attempt_that_ran(
    saved_at: float, expected: tuple[int, int]
) -> None:
    attempts = {"0": {"at": 10.0}, "1": {"step": 10, "at": 100.0}, "2": {"step": 20, "at": 200.0}}
    found = lineage.of_saved_at("job", attempts, 30, saved_at)
    assert (found.attempt, found.parent_step) == expected
    assert lineage.of_saved_at("job", {}, 30, saved_at) == Lineage("job", 0, -1)
    assert lineage.of_saved_at("job", {"3": {"step": 10, "at": 1e10}}, 30, saved_at).attempt == 2


def test_what_a_later_attempt_left_behind() -> None:
    attempts = {"1": {"step": -1}, "2": {"step": 1000}, "3": {}}
    assert lineage.left_behind(attempts, 1, 1500)
    assert not lineage.left_behind(attempts, 1, 1000)
    assert not lineage.left_behind(attempts, 2, 1500)
