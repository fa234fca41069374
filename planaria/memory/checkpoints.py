"""The memory twin of a CheckpointStore. It holds no bytes: of each shard its size and checksum, as S3 tells
them."""

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from planaria.core import pins, step_names
from planaria.core.checkpoint_ports import Flaw
from planaria.core.errors import InvalidInput, PermanentError, TransientError
from planaria.core.manifest import Lineage, Manifest, Shard, digest
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy, StepState, Tier, without_implausible


@dataclass(slots=True)
class Held:
    """One step's directory. shards: name -> (bytes, CRC64NVME); touched_at: epoch seconds."""

    shards: dict[str, tuple[int, str]] = field(default_factory=dict)
    manifest: bytes | None = None
    pin: bytes | None = None
    touched_at: float = 0.0


class MemoryCheckpoints:
    """held: name of a step's directory -> what is in it; a test changes it as it likes. reachable: False
    plays a place that does not answer. proofs: how many shards prove and verify were asked of."""

    def __init__(self, job: str, tier: Tier = Tier.S3, root: str = "") -> None:
        self.held: dict[str, Held] = {}
        self.reachable = True
        self.proofs = 0
        self._job, self._tier = job, tier
        self._root = root or f"s3://bucket/checkpoints/{job}"
        self._lock = threading.RLock()

    def put(self, name: str, shards: Sequence[Shard], at: float = 0.0) -> None:
        """These shards are there; without a manifest they are no step yet."""
        there = self.held.setdefault(name, Held())
        there.shards |= {shard.name: (shard.size, shard.crc64nvme) for shard in shards}
        there.touched_at = max(there.touched_at, at)

    def save(self, manifest: Manifest, name: str = "") -> StepCopy:
        """All of a step, manifest included. -> its copy as `steps` tells it."""
        name = name or step_names.name_of(manifest.step)
        self.put(name, manifest.shards, manifest.saved_at)
        self.commit(manifest, name)
        return self._judge(name)

    def place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def steps(self) -> list[StepCopy]:
        self._reach()
        with self._lock:
            names = [name for name in sorted(self.held) if step_names.read(name) is not None]
            return without_implausible(self._judge(name) for name in names)

    def verify(self, copy: StepCopy) -> StepCopy:
        """DURABLE in S3."""
        self._reach()
        now = self._judge(self._own(copy))
        if not now.usable:
            return now
        flaws = self.prove(now.place, self.manifest(now).shards)
        if flaws:
            return replace(now, state=StepState.CORRUPT, reason=f"{flaws[0].name!r}: {flaws[0].reason}")
        return replace(now, state=StepState.DURABLE) if self._tier is Tier.S3 else now

    def prove(self, place: str, shards: Sequence[Shard]) -> list[Flaw]:
        """What is not there with the right size and checksum. place: of the step's directory."""
        self._reach()
        there = self.held.get(place.rpartition("/")[2], Held()).shards
        self.proofs += len(shards)
        flaws = []
        for shard in shards:
            if shard.name not in there:
                flaws.append(Flaw(shard.name, "it is missing"))
            elif there[shard.name][0] != shard.size:
                flaws.append(Flaw(shard.name, f"it has {there[shard.name][0]} bytes, not {shard.size}"))
            elif there[shard.name][1] != shard.crc64nvme:
                flaws.append(Flaw(shard.name, "its checksum is wrong"))
        return flaws

    def manifest(self, copy: StepCopy) -> Manifest:
        self._reach()
        there = self.held.get(self._own(copy))
        if there is None or there.manifest is None:
            raise InvalidInput(f"{copy.place} has no manifest")
        return Manifest.from_json(there.manifest)

    def commit(self, manifest: Manifest, name: str = "") -> bool:
        self._reach()
        name = name or step_names.name_of(manifest.step)
        told = step_names.read(name)
        if told is None or told.step != manifest.step:
            raise PermanentError(f"the directory {name!r} is not of step {manifest.step}")
        if manifest.lineage.job != self._job:
            raise PermanentError(f"the manifest is of job {manifest.lineage.job}, not of {self._job}")
        with self._lock:
            there = self.held.setdefault(name, Held())
            if there.manifest is None:
                there.manifest = manifest.to_json()
                return True
        if there.manifest != manifest.to_json():
            raise PermanentError(f"{self.place(name)} has another manifest already")
        return False

    def remove(self, copy: StepCopy) -> None:
        self._reach()
        with self._lock:
            name = self._own(copy)
            if name not in self.held:
                return
            if self._judge(name).digest != copy.digest:
                raise PermanentError(f"{copy.place} has changed since it was listed; it is not removed")
            del self.held[name]

    def sweep(self, before: float, active: Collection[str] = ()) -> list[str]:
        self._reach()
        gone = []
        for name, there in sorted(self.held.items()):
            busy = there.pin is not None or any(
                name == each or name.startswith(f"{each}.") for each in active
            )
            told = step_names.read(name)
            unfinished = told is not None and (told.unfinished or there.manifest is None)
            if unfinished and not busy and there.pin is None and there.touched_at < before:
                del self.held[name]
                gone.append(name)
        return gone

    def pin(self, copy: StepCopy, pin: Pin) -> None:
        self._reach()
        there = self.held.get(self._own(copy))
        if there is None:
            raise PermanentError(f"{copy.place} is not there")
        there.pin = pin.to_json()

    def unpin(self, copy: StepCopy) -> None:
        self._reach()
        if there := self.held.get(self._own(copy)):
            there.pin = None

    def _judge(self, name: str) -> StepCopy:
        told = step_names.read(name) or step_names.StepName(-1)
        copy = StepCopy(told.step, self._tier, StepState.PARTIAL, self.place(name))
        there = self.held.get(name)
        if there is None:
            return replace(copy, reason="it is gone")
        size = sum(bytes_ for bytes_, _ in there.shards.values())
        pinned = "" if there.pin is None else pins.reason_of(there.pin)
        copy = replace(copy, size=size, touched_at=there.touched_at, pinned=pinned)
        if there.manifest is None:
            empty = not there.shards
            state = StepState.PARTIAL if told.unfinished or empty else StepState.FOREIGN
            return replace(
                copy, state=state, reason="the directory is empty" if empty else "it has no manifest"
            )
        try:
            manifest = Manifest.from_json(there.manifest)
        except InvalidInput as error:
            return replace(copy, state=StepState.CORRUPT, reason=str(error))
        copy = replace(
            copy,
            size=manifest.size,
            lineage=manifest.lineage,
            saved_at=manifest.saved_at,
            digest=digest(there.manifest),
            format=manifest.format,
        )
        state, reason = self._state(copy, told.unfinished, manifest, there)
        return replace(copy, state=state, reason=reason)

    def _state(
        self, copy: StepCopy, unfinished: bool, manifest: Manifest, there: Held
    ) -> tuple[StepState, str]:
        lineage: Lineage = manifest.lineage
        if lineage.job != self._job:
            return StepState.FOREIGN, f"it belongs to the job {lineage.job!r}"
        if manifest.step != copy.step:
            return StepState.CORRUPT, f"the manifest in {copy.name!r} is of step {manifest.step}"
        if unfinished:
            return StepState.PARTIAL, f"{copy.name!r} is a save or a copy that did not finish"
        for shard in manifest.shards:
            if there.shards.get(shard.name, (-1, ""))[0] != shard.size:
                return StepState.CORRUPT, f"{shard.name!r} is not there with {shard.size} bytes"
        return StepState.COMPLETE, ""

    def _own(self, copy: StepCopy) -> str:
        if copy.place != self.place(copy.name):
            raise InvalidInput(f"{copy.place} does not lie in {self._root}")
        return copy.name

    def _reach(self) -> None:
        if not self.reachable:
            raise TransientError(f"{self._root} does not answer")
