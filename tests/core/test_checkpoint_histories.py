"""Random histories of saves, crashes, copies, prunes, sweeps, resumes and bad luck: nothing durable that is
the newest or a resume point is ever lost; nothing partial, set aside or left behind is ever chosen."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from planaria.core.checkpoint_policy import Retention
from planaria.core.checkpoints import choose_copy
from planaria.core.errors import PermanentError
from planaria.core.saved_step import Tier
from tests.core.checkpoint_world import JOB, MOST_ATTEMPTS, World

picks = st.integers(0, 7)
tiers = st.sampled_from([Tier.S3, Tier.FSX])
rules_of = st.builds(
    Retention,
    keep=st.sampled_from([1, 1, 2, 3]),
    keep_seconds=st.sampled_from([0.0, 0.0, 0.0, 5.0]),
    keep_every=st.sampled_from([0, 0, 0, 7]),
    keep_tags=st.sampled_from([(), ("best",)]),
)
rarely = st.none() | rules_of
meanwhile = st.lists(
    st.tuples(st.sampled_from(["go on", "save", "copy", "pin", "busy", "fail"]), picks), max_size=3
)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(copied=st.lists(st.sampled_from([True, True, False]), min_size=1, max_size=6))
    def it_trains_at_first(self, copied: list[bool]) -> None:
        self.train(copied, None)

    @rule(copied=st.lists(st.booleans(), min_size=1, max_size=4), rules=rarely)
    def train(self, copied: list[bool], rules: Retention | None) -> None:
        """Steps that are saved, and copied or not."""
        for each in copied if self.world.running else ():
            self.world.begin_save(1)
            self.world.finish_save()
            if each:
                self.world.begin_sync(-1)
                self.world.finish_sync(-1)
        if rules:
            self.world.prune(Tier.S3, rules)
            self.world.prune(Tier.FSX, rules)

    @rule(gap=st.integers(1, 3))
    def begin_a_save(self, gap: int) -> None:
        if self.world.running:
            self.world.begin_save(gap)

    @precondition(lambda self: self.world.saving)
    @rule()
    def finish_a_save(self) -> None:
        self.world.finish_save()

    @rule(pick=picks)
    def begin_a_copy(self, pick: int) -> None:
        self.world.begin_sync(pick)

    @precondition(lambda self: self.world.syncing)
    @rule(pick=picks, given_up=st.booleans())
    def end_a_copy(self, pick: int, given_up: bool) -> None:
        if given_up:
            self.world.syncing.clear()
        else:
            self.world.finish_sync(pick)

    @precondition(lambda self: self.world.attempt < MOST_ATTEMPTS)
    @rule(
        lost=st.sampled_from([False, False, True]),
        back=st.integers(0, 2),
        clear=st.booleans(),
        copied=st.lists(st.booleans(), max_size=2),
        rules=rarely,
    )
    def start_again(
        self, lost: bool, back: int, clear: bool, copied: list[bool], rules: Retention | None
    ) -> None:
        """lost: with its file system. back: from so many of the steps that it would be started from it fails.
        rules: of a prune then."""
        self.world.crash()
        if lost:
            self.world.wipe()
        if clear:
            self.world.aside.clear()
        for _ in range(back):
            self.set_aside()
        self.world.resume()
        self.train(copied, rules)

    @rule(pick=picks, how=st.sampled_from(["pin", "best", "worst", "busy"]))
    def keep(self, pick: int, how: str) -> None:
        steps = sorted({copy.step for copy in self.world.copies()})
        if not steps:
            return
        step = steps[pick % len(steps)]
        match how:
            case "pin":
                self.world.pins = {step: "by ann"}
            case "busy":
                self.world.restoring = {step: "a restore"}
            case _:
                self.world.tags[step] = (how,)

    @rule(tier=tiers, rules=rules_of, events=meanwhile)
    def prune(self, tier: Tier, rules: Retention, events: list[tuple[str, int]]) -> None:
        self.world.prune(tier, rules, [self._event(*event) for event in events])

    @rule(tier=tiers, age=st.sampled_from([0.0, 3.0]))
    def sweep(self, tier: Tier, age: float) -> None:
        self.world.sweep(tier, age)

    @rule(tier=tiers, pick=picks, how=st.sampled_from(["flip", "shard", "manifest", "flip", "shard", "wipe"]))
    def bad_luck(self, tier: Tier, pick: int, how: str) -> None:
        if how == "wipe":
            self.world.wipe()
        else:
            self.world.damage(tier, pick, how)

    @invariant()
    def holds(self) -> None:
        self.world.now += 1.0
        self.world.check()

    def set_aside(self) -> None:
        try:
            copy = choose_copy(self.world.copies(), JOB, self.world.aside, self.world.starts).copy
        except PermanentError:
            return
        if copy is not None:
            self.world.aside[str(copy.step)] = {"why": "it fails", "copy": copy.saved_at}

    def _event(self, what: str, pick: int) -> Callable[[], None]:
        """What happens while a prune is under way."""

        def happen() -> None:
            match what:
                case "go on" if self.world.attempt < MOST_ATTEMPTS:
                    self.world.crash()
                    self.set_aside()
                    self.world.resume()
                case "save" if self.world.saving:
                    self.world.finish_save()
                case "copy":
                    self.world.finish_sync(pick)
                case "pin" | "busy":
                    self.keep(pick, what)
                case "fail":
                    self.world.crash()

        return happen


def test_histories() -> None:
    bounded = settings(max_examples=150, stateful_step_count=25, deadline=None, database=None)
    run_state_machine_as_test(Histories, settings=bounded)


@pytest.mark.campaign
def test_many_histories() -> None:
    many = settings(max_examples=400, stateful_step_count=50, deadline=None, database=None)
    run_state_machine_as_test(Histories, settings=many)
