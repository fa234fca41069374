"""Which steps go and why the others stay, by example. test_checkpoint_histories.py plays random histories."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planaria.core import retention
from planaria.core.checkpoint_policy import Retention
from planaria.core.errors import PermanentError, TransientError
from planaria.core.lineage import key_of
from planaria.core.manifest import NO_STEP
from planaria.core.retention import HOUR, Facts, Plan
from planaria.core.saved_step import StepCopy, StepState, Tier
from tests.core.test_checkpoint_choice import saved

D, C, P, F, X = StepState.DURABLE, StepState.COMPLETE, StepState.PARTIAL, StepState.FOREIGN, StepState.CORRUPT
NOW = 1e6


def durable(step: int, attempt: int = 1, parent: int = NO_STEP) -> StepCopy:
    return saved(step, attempt, parent, Tier.S3, D)


def plan(
    copies: Sequence[StepCopy],
    keep: int = 1,
    tier: Tier = Tier.S3,
    facts: Facts | None = None,
    **rules: float,
) -> Plan:
    return retention.plan(copies, tier, Retention(keep, **rules), NOW, facts)  # type: ignore[arg-type]


def going(planned: Plan) -> list[int]:
    return [copy.step for copy in planned.going]


def why(planned: Plan, step: int) -> str:
    return next(verdict.why for verdict in planned.verdicts if verdict.copy.step == step)


STEPS = [durable(step) for step in (100, 200, 300, 400, 500)]


def test_the_newest_stay_and_the_oldest_go_first() -> None:
    planned = plan(STEPS, 2)
    assert going(planned) == [100, 200, 300]
    assert why(planned, 500) == "it is the newest durable step"
    assert why(planned, 400) == "it is among the newest 2"
    assert why(planned, 300) == "2 newer durable steps are kept, and no rule keeps it"
    assert [verdict.copy.step for verdict in planned.verdicts] == [500, 400, 300, 200, 100]


def test_during_an_asynchronous_save_nothing_durable_goes() -> None:
    """keep 1, 500 is durable, 1000 is in flight: on the file system, then whole there, then in S3."""
    facts = Facts(busy={1000: "a save"})
    there = [saved(500), durable(500)]
    for newest in (saved(1000, state=P), saved(1000)):
        for tier in (Tier.FSX, Tier.S3):
            planned = plan([*there, newest], tier=tier, facts=facts)
            assert going(planned) == []
    assert going(plan([*there, saved(1000), saved(1000, tier=Tier.S3, state=P)])) == []
    assert why(plan([*there, saved(1000)], tier=Tier.FSX), 1000) == "it is not durable yet"
    safe = [*there, saved(1000), durable(1000)]
    assert going(plan(safe)) == [500]
    assert going(plan(safe, tier=Tier.FSX)) == [500]
    assert going(plan(safe, facts=Facts(resume_points={500}))) == [], "the attempt that saves it began there"


def test_a_copy_on_the_file_system_counts_once_the_same_is_in_s3() -> None:
    here = [saved(step) for step in (100, 200, 300)]
    assert going(plan(here, tier=Tier.FSX)) == []
    assert going(plan([*here, durable(100), durable(300)], tier=Tier.FSX)) == [100]
    other = replace(durable(100), digest="another copy")
    assert going(plan([*here, other, durable(300)], tier=Tier.FSX)) == []
    unproven = saved(100, tier=Tier.S3, state=C)
    assert going(plan([*here, unproven, durable(300)], tier=Tier.FSX)) == []


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (Facts(resume_points={100}), "it is a resume point"),
        (Facts(pinned={100: "for the paper"}), "it is pinned (for the paper)"),
        (Facts(busy={100: "a restore"}), "it is in use (a restore)"),
    ],
)
def test_what_is_needed_stays(facts: Facts, said: str) -> None:
    planned = plan(STEPS, 2, facts=facts)
    assert going(planned) == [200, 300]
    assert why(planned, 100) == said


def test_a_pin_in_the_place_itself_counts() -> None:
    planned = plan([replace(STEPS[0], pinned="by ann"), *STEPS[1:]])
    assert why(planned, 100) == "it is pinned (by ann)"


def test_rules_that_keep_more() -> None:
    aged = [
        replace(copy, saved_at=NOW - hours * HOUR) for copy, hours in zip(STEPS, (9, 7, 5, 3, 1), strict=True)
    ]
    planned = plan(aged, keep_seconds=6 * HOUR)
    assert going(planned) == [100, 200]
    assert why(planned, 300) == "it is younger than 6 h"
    assert going(plan(STEPS, keep_every=200)) == [100, 300]
    planned = plan(STEPS, keep_tags=("best",), facts=Facts(tags={200: ["worst", "best"], 300: ["worst"]}))  # type: ignore[arg-type]
    assert going(planned) == [100, 300, 400]
    assert why(planned, 200) == "it has the tag best"
    ageless = [replace(STEPS[0], saved_at=None), *STEPS[1:]]
    assert why(plan(ageless, keep_seconds=HOUR), 100) == "nobody tells its age"


def test_without_rules_nothing_goes() -> None:
    planned = retention.plan(STEPS, Tier.S3, None, NOW)
    assert planned.going == []
    assert why(planned, 100) == "nothing is ever removed from s3"
    assert going(plan(STEPS, 0)) == [100, 200, 300, 400], "at least one stays, whatever is asked"


def test_what_does_not_count_neither_goes_nor_takes_a_place() -> None:
    odd = [
        saved(600, tier=Tier.S3, state=P),
        saved(700, tier=Tier.S3, state=F),
        saved(800, tier=Tier.S3, state=X),
        saved(900, tier=Tier.S3, state=C),
    ]
    planned = plan([*STEPS, *odd])
    assert going(planned) == [100, 200, 300, 400]
    assert "the sweep sees to it" in why(planned, 600)
    assert "a person may want to look" in why(planned, 700)
    assert "a person may want to look" in why(planned, 800)
    assert why(planned, 900) == "it is not durable yet"


def test_the_order_is_the_lines_not_the_numbers() -> None:
    """Attempt 2 went back to 1000; 1500 and 2000 of attempt 1 are left behind."""
    copies = [*map(durable, (500, 1000, 1500, 2000)), durable(1200, 2, 1000), durable(1300, 2, 1200)]
    planned = plan(copies, 3)
    assert [key_of(copy) for copy in planned.going] == [(1, 500), (1, 1500), (1, 2000)]
    assert going(plan(copies, 4)) == [1500, 2000]


def test_what_an_attempt_would_go_back_to_stays_until_it_has_its_own() -> None:
    """Attempt 2 has begun at 1000 and nothing of it is durable; 1500 is the newest durable step by age."""
    copies = [*map(durable, (500, 1000, 1500)), saved(1200, 2, 1000)]
    planned = plan(copies)
    assert going(planned) == [500]
    assert why(planned, 1000) == "it is the newest durable step"
    planned = plan(copies[:3], facts=Facts(starts={2: 1000}))
    assert going(planned) == [500]
    assert why(planned, 1000) == "attempt 2 has no other durable step to go back to"
    assert going(plan([*copies, durable(1200, 2, 1000)])) == [500, 1000, 1500]


def test_also_what_it_would_go_back_to_after_what_is_set_aside() -> None:
    aside = {"500": {"why": "it fails from there", "copy": STEPS[4].saved_at}}
    planned = plan(STEPS, facts=Facts(aside=aside))
    assert going(planned) == [100, 200, 300]


def test_what_is_abandoned() -> None:
    old, young = replace(saved(10, state=P), touched_at=5.0), replace(saved(20, state=P), touched_at=15.0)
    untold, pinned = saved(30, state=P), replace(saved(40, state=P), touched_at=5.0, pinned="by ann")
    copies = [
        old,
        young,
        untold,
        pinned,
        replace(saved(50), touched_at=5.0),
        replace(saved(60, state=X), touched_at=5.0),
    ]
    assert retention.abandoned(copies, 10.0) == [old]
    assert retention.abandoned(copies, 10.0, {"step-10"}) == []
    assert retention.abandoned(copies, 5.0) == []


# --- carrying it out -------------------------------------------------------------------------------


class Tree:
    """Steps that are removed, and what happens meanwhile. after: number of looks -> facts from then on."""

    def __init__(self, after: dict[int, Facts] | None = None) -> None:
        self.copies = list(STEPS)
        self.after = after or {}
        self.facts = Facts()
        self.looks = 0
        self.fails: dict[int, Exception] = {}

    def look(self) -> Plan:
        self.looks += 1
        self.facts = self.after.get(self.looks, self.facts)
        return plan(self.copies, facts=self.facts)

    def remove(self, copy: StepCopy) -> None:
        if copy.step in self.fails:
            raise self.fails[copy.step]
        self.copies.remove(copy)


def test_it_removes_what_was_planned() -> None:
    tree = Tree()
    done = retention.carry_out(tree.look, tree.remove)
    assert [copy.step for copy in done.removed] == [100, 200, 300, 400]
    assert (done.failed, done.more, tree.copies) == ((), False, [STEPS[4]])
    tree = Tree()
    done = retention.carry_out(tree.look, tree.remove, most=1)
    assert ([copy.step for copy in done.removed], done.more) == ([100], True)


def test_what_has_come_to_be_needed_meanwhile_stays() -> None:
    tree = Tree({3: Facts(resume_points={300}, pinned={400: "by ann"})})
    done = retention.carry_out(tree.look, tree.remove)
    assert [copy.step for copy in done.removed] == [100, 200]


def test_what_was_not_planned_at_first_is_not_removed() -> None:
    """A step that is saved meanwhile pushes others over the limit: that is the next run's."""
    tree = Tree()
    original = tree.remove

    def remove(copy: StepCopy) -> None:
        original(copy)
        tree.copies = [*tree.copies, durable(500 + copy.step)]

    assert [copy.step for copy in retention.carry_out(tree.look, remove).removed] == [100, 200, 300, 400]


def test_a_failure_is_told_and_the_others_go_on() -> None:
    tree = Tree()
    tree.fails = {200: PermanentError("denied")}
    done = retention.carry_out(tree.look, tree.remove)
    assert [copy.step for copy in done.removed] == [100, 300, 400]
    assert done.failed == ((STEPS[1], "denied"),)
    tree = Tree()
    tree.fails = {200: TransientError("SlowDown")}
    done = retention.carry_out(tree.look, tree.remove)
    assert [copy.step for copy in done.removed] == [100]
