"""A job, its file system and its bucket, for random histories of checkpoints, and what must never happen.

The world knows what the code under test is not told: which attempt went on from which step, and what has been
damaged. Step numbers are different in every attempt, so a number names one step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planaria.core import checkpoints, lineage, retention
from planaria.core.checkpoint_policy import Retention
from planaria.core.checkpoints import choose_copy
from planaria.core.errors import PermanentError
from planaria.core.lineage import Key, key_of
from planaria.core.manifest import NO_STEP, Format, Lineage, Manifest, Shard
from planaria.core.retention import Facts, Plan
from planaria.core.saved_step import StepCopy, StepState, Tier
from planaria.memory.checkpoints import Held, MemoryCheckpoints

JOB = "job"
MOST_ATTEMPTS = 9
NEVER = 10**9


@dataclass(frozen=True, slots=True)
class Begun:
    """How an attempt began: at `step`, which attempt `owner` had saved; -1 at the beginning."""

    owner: int
    step: int


def manifest_of(step: int, attempt: int, parent: int, at: float) -> Manifest:
    shards = tuple(Shard(name, 100 + step, f"{attempt:05d}{step:06d}=") for name in ("a", "b"))
    return Manifest(step, Lineage(JOB, attempt, parent), 2, Format.PLANARIA, shards, at)


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.fsx = MemoryCheckpoints(JOB, Tier.FSX, "/fsx/job")
        self.s3 = MemoryCheckpoints(JOB, Tier.S3)
        self.attempts = {1: Begun(0, NO_STEP)}
        self.running = True
        self.reached = 0
        self.last = NO_STEP
        self.saving: list[Manifest] = []
        self.syncing: dict[int, Manifest] = {}
        self.restoring: dict[int, str] = {}
        self.proven: dict[Key, str] = {}
        """What the ledger calls durable: its manifest's digest."""
        self.damaged: set[Key] = set()
        """What the world has done to S3, whoever knows of it."""
        self.pins: dict[int, str] = {}
        self.tags: dict[int, tuple[str, ...]] = {}
        self.aside: dict[str, dict[str, object]] = {}
        self.chosen: list[int] = []
        self.removed: list[tuple[Tier, Key]] = []

    # --- what is known ---------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        return max(self.attempts)

    @property
    def starts(self) -> dict[int, int]:
        rows = {str(number): {"step": begun.step} for number, begun in self.attempts.items()}
        return lineage.starts_of(rows)

    def store(self, tier: Tier) -> MemoryCheckpoints:
        return self.fsx if tier is Tier.FSX else self.s3

    def copies(self) -> list[StepCopy]:
        """As a Lambda sees them: S3's are durable where the ledger says so of this very copy."""
        listed = [
            replace(copy, state=StepState.DURABLE)
            if copy.state is StepState.COMPLETE and self.proven.get(key_of(copy)) == copy.digest
            else copy
            for copy in self.s3.steps()
        ]
        return self.fsx.steps() + listed

    def facts(self) -> Facts:
        busy = {manifest.step: "a save" for manifest in self.saving}
        busy |= dict.fromkeys(self.syncing, "a copy") | self.restoring
        return Facts({self.attempts[self.attempt].step}, self.pins, self.tags, busy, self.starts, self.aside)

    # --- the truth -------------------------------------------------------------------------------

    def path(self, attempt: int) -> Iterator[tuple[int, int]]:
        """(attempt, up to which step) of all that this attempt goes on from, itself first."""
        limit = NEVER
        while attempt:
            yield attempt, limit
            attempt, limit = self.attempts[attempt].owner, self.attempts[attempt].step

    def on_path(self, key: Key, attempt: int) -> bool:
        return any(key[0] == older and key[1] <= limit for older, limit in self.path(attempt))

    def is_told(self, attempt: int, known: set[Key]) -> bool:
        """The step at which each attempt of the path began is still somewhere: then its path can be told."""
        hops = [(older, limit) for older, limit in self.path(attempt) if limit != NEVER]
        return all(hop in known for hop in hops)

    def is_good(self, copy: StepCopy) -> bool:
        return self.store(copy.tier).verify(copy).usable

    def durable_in(self, tier: Tier) -> dict[Key, StepCopy]:
        """What counts there: whole, and the ledger and S3's own list say that S3 has the same."""
        safe = {copy.digest for copy in self.copies() if copy.state is StepState.DURABLE}
        return {
            key_of(copy): copy
            for copy in self.copies()
            if copy.tier is tier and copy.usable and copy.digest in safe
        }

    # --- saving and copying ----------------------------------------------------------------------

    def begin_save(self, gap: int) -> None:
        self.reached += gap
        step = self.reached * 10 + self.attempt
        manifest = manifest_of(step, self.attempt, self.last, self.now)
        self.last = step
        self.saving.append(manifest)
        self.fsx.put(f"step-{step}.tmp", manifest.shards[:1], self.now)

    def finish_save(self) -> None:
        """Saves end in the order in which they began, as those of one job do."""
        manifest = self.saving.pop(0)
        self.fsx.held.pop(f"step-{manifest.step}.tmp", None)
        self.fsx.save(manifest)

    def begin_sync(self, pick: int) -> None:
        open_steps = [
            copy
            for copy in self.fsx.steps()
            if copy.usable and key_of(copy) not in self.proven and copy.step not in self.syncing
        ]
        if open_steps:
            manifest = self.fsx.manifest(open_steps[pick % len(open_steps)])
            self.syncing[manifest.step] = manifest
            self.s3.put(f"step-{manifest.step}", manifest.shards[:1], self.now)

    def finish_sync(self, pick: int) -> None:
        """The bytes come from the file system, are proven, and only then the manifest is written."""
        if not self.syncing:
            return
        manifest = self.syncing.pop(sorted(self.syncing)[pick % len(self.syncing)])
        name = f"step-{manifest.step}"
        source = next((copy for copy in self.fsx.steps() if copy.step == manifest.step), None)
        if source is None or not self.is_good(source):
            return
        self.s3.put(name, manifest.shards, self.now)
        if not self.s3.prove(self.s3.place(name), manifest.shards):
            try:
                self.s3.commit(manifest)
            except PermanentError:
                return
            key = (manifest.lineage.attempt, manifest.step)
            self.damaged.discard(key)
            self.proven[key] = next(copy.digest for copy in self.s3.steps() if copy.step == manifest.step)

    # --- the job ---------------------------------------------------------------------------------

    def crash(self) -> None:
        self.running, self.saving = False, []

    def resume(self) -> None:
        """As choose_checkpoint does it: what turns out bad is passed over, and the next one is looked at."""
        known = self.copies()
        while True:
            try:
                choice = choose_copy(known, JOB, self.aside, self.starts)
            except PermanentError:
                self.check_refusal(known)
                self.aside.clear()  # a person has looked
                return
            if choice.copy is None:
                self.check_beginning(known)
                self.start(0, NO_STEP)
                return
            good = next((copy for copy in choice.copies if self.is_good(copy)), None)
            if good is not None:
                break
            for bad in choice.copies:
                known[known.index(bad)] = replace(bad, state=StepState.CORRUPT)
                if bad.tier is Tier.S3:
                    self.proven.pop(key_of(bad), None)
        self.check_choice(good, known)
        if good.tier is Tier.S3:
            manifest = self.s3.manifest(good)
            self.fsx.held.pop(good.name, None)
            self.fsx.save(manifest)
        self.start(key_of(good)[0], good.step)

    def start(self, owner: int, step: int) -> None:
        self.attempts[self.attempt + 1] = Begun(owner, step)
        self.running, self.reached, self.last = True, max(step, 0) // 10, step
        self.chosen.append(step)

    # --- pruning and sweeping --------------------------------------------------------------------

    def prune(self, tier: Tier, rules: Retention, between: Sequence[Callable[[], None]] = ()) -> None:
        """between: what happens before the second look, the third, and so on."""
        todo = [lambda: None, *between]

        def look() -> Plan:
            if todo:
                todo.pop(0)()
            return retention.plan(self.copies(), tier, rules, self.now, self.facts())

        retention.carry_out(look, lambda copy: self.remove(copy, rules))

    def remove(self, copy: StepCopy, rules: Retention) -> None:
        self.check_removal(copy, rules)
        self.store(copy.tier).remove(copy)
        self.removed.append((copy.tier, key_of(copy)))
        if copy.tier is Tier.S3:
            self.proven.pop(key_of(copy), None)

    def sweep(self, tier: Tier, age: float) -> None:
        active = {f"step-{manifest.step}" for manifest in self.saving} | {f"step-{n}" for n in self.syncing}
        self.store(tier).sweep(self.now - age, active)

    # --- bad luck --------------------------------------------------------------------------------

    def damage(self, tier: Tier, pick: int, how: str) -> None:
        """flip: nothing but a look at every byte tells. shard, manifest: it is gone."""
        store = self.store(tier)
        whole = [copy for copy in store.steps() if copy.usable]
        if not whole:
            return
        copy = whole[pick % len(whole)]
        held: Held = store.held[copy.name]
        if how == "flip":
            held.shards["b"] = (held.shards["b"][0], "AAAAAAAAAAA=")
        elif how == "shard":
            del held.shards["b"]
        else:
            held.manifest = b"{}"
        if tier is Tier.S3:
            self.damaged.add(key_of(copy))

    def wipe(self) -> None:
        """The file system is gone, and with it what was on its way from there."""
        self.crash()
        self.fsx.held.clear()

    # --- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        """What the ledger calls durable is in S3, unless retention removed it or bad luck did."""
        there = {key_of(copy): copy for copy in self.s3.steps() if copy.lineage}
        for key in self.proven:
            if key not in self.damaged:
                assert key in there, f"{key} is lost"
                assert self.s3.verify(there[key]).state is StepState.DURABLE, f"{key} is spoiled"

    def check_removal(self, copy: StepCopy, rules: Retention) -> None:
        tier, key = copy.tier, key_of(copy)
        durable = self.durable_in(tier)
        assert key in durable, f"{key} goes, and is not durable"
        assert copy.step != self.attempts[self.attempt].step, f"{key} goes, and is the resume point"
        assert copy.step not in self.pins, f"{key} goes, and is pinned"
        assert copy.step not in self.facts().busy, f"{key} goes, and is in use"
        assert self.now - (copy.saved_at or self.now) >= rules.keep_seconds, f"{key} goes, and is young"
        assert not rules.keep_every or copy.step % rules.keep_every, f"{key} goes, and is one of the Nth"
        assert not set(rules.keep_tags) & set(self.tags.get(copy.step, ())), f"{key} goes, and has a tag"
        assert len(durable) > rules.keep, f"{key} goes, and only {len(durable)} are there"
        fit = {each for each, there in durable.items() if not checkpoints.is_aside(there, self.aside)}
        for some in (set(durable), fit):
            assert not some or key != max(some), f"{key} goes, and is the newest durable one"
        known = {key_of(each) for each in self.copies() if each.lineage}
        alive = {number for number, _ in known} & {key_of(each)[0] for each in self.copies() if each.usable}
        owning = {number for number, _ in durable}
        for attempt in {max(known)[0], self.attempt, *alive}:
            if attempt in owning and attempt != max(known)[0]:
                continue
            for some in (set(durable), fit):
                back = [each for each in some if self.on_path(each, attempt)]
                if back and self.is_told(attempt, known):
                    assert key != max(back), f"{key} goes, and attempt {attempt} would go back to it"

    def check_choice(self, copy: StepCopy, known: Sequence[StepCopy]) -> None:
        key = key_of(copy)
        held = self.store(copy.tier).held[copy.name]
        assert held.manifest is not None
        assert set(held.shards) == {"a", "b"}, f"{key} is chosen, and is partial"
        assert not checkpoints.is_aside(copy, self.aside), f"{key} is chosen, and is set aside"
        present = self.present(known)
        for attempt, limit in self.path(present):
            later = [self.attempts[a].step for a, _ in self.path(present) if a > attempt]
            if attempt == key[0] and later:
                assert key[1] <= limit, f"{key} is chosen, and one went back to {min(later)}"
        if self.is_told(present, {key_of(each) for each in known if each.lineage}):
            assert self.on_path(key, present), f"{key} is chosen, and is no step of the line of {present}"
            assert key == max(self.good(known, present)), f"{key} is chosen, and a newer one is good"

    def check_refusal(self, known: Sequence[StepCopy]) -> None:
        present = self.present(known)
        if self.is_told(present, {key_of(each) for each in known if each.lineage}):
            assert not self.good(known, present), "nobody begins, and there is a good step"

    def check_beginning(self, known: Sequence[StepCopy]) -> None:
        assert not any(copy.usable for copy in known), "it begins anew, and there is a step"
        assert not set(self.proven) - self.damaged, "it begins anew, and a step is durable"

    def present(self, known: Sequence[StepCopy]) -> int:
        return max((key_of(copy)[0] for copy in known if copy.lineage), default=0)

    def good(self, known: Sequence[StepCopy], attempt: int) -> set[Key]:
        return {
            key_of(copy)
            for copy in known
            if copy.usable
            and self.on_path(key_of(copy), attempt)
            and not checkpoints.is_aside(copy, self.aside)
            and self.is_good(copy)
        }
