"""What a checkpoint step in a bucket is worth, told by its keys, its manifest and what S3 says of each
object."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planaria.aws.bucket_objects import BucketObjects, Listing, absent, denied
from planaria.core import pins, step_names
from planaria.core.checkpoint_ports import Flaw
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.manifest import FILE_NAME, PIN_NAME, Manifest, Shard, digest
from planaria.core.saved_step import StepCopy, StepState

TOMBSTONE = json.dumps({"version": 1, "removing": True}).encode()
"""In a manifest's place while the step is being removed."""

_LOOKED_AT = 50
_GRAVEST = (StepState.CORRUPT, StepState.FOREIGN, StepState.COMPLETE)
_SINGLE = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")


def judged(copy: StepCopy, listing: Listing, body: bytes | None, job: str) -> StepCopy:
    """By keys and sizes. body: of the manifest, None without one."""
    there = {name: each.size for name, each in listing.objects.items() if _is_shard(name)}
    told = step_names.read(copy.name)
    if body == TOMBSTONE:
        return replace(copy, state=StepState.PARTIAL, reason="it is being removed")
    copy = copy if body is None else replace(copy, digest=digest(body))
    if told is not None and told.unfinished:
        return replace(copy, state=StepState.PARTIAL, reason="its name says that it is not finished")
    if body is None:
        if _has_own_index(there):
            reason = "it has no manifest, and looks like a checkpoint that was put there without one"
            return replace(copy, state=StepState.FOREIGN, reason=reason)
        reason = "it has no manifest: a copy that did not finish, or is under way"
        return replace(copy, state=StepState.PARTIAL, reason=reason)
    try:
        manifest = Manifest.from_json(body)
    except InvalidInput as error:
        return replace(copy, state=StepState.CORRUPT, reason=str(error))
    copy = replace(copy, lineage=manifest.lineage, saved_at=manifest.saved_at, format=manifest.format)
    if manifest.lineage.job != job:
        reason = f"it belongs to the job {manifest.lineage.job!r}"
        return replace(copy, state=StepState.FOREIGN, reason=reason)
    if manifest.step != copy.step:
        reason = f"its manifest is of step {manifest.step}"
        return replace(copy, state=StepState.CORRUPT, reason=reason)
    reason = _lacking(manifest, there, listing.whole)
    state = StepState.CORRUPT if reason else StepState.COMPLETE
    return replace(copy, state=state, reason=reason, size=manifest.size)


def unread(copy: StepCopy, error: PermanentError) -> StepCopy:
    """Of a step whose manifest S3 does not give out, or that is too large to be one."""
    if isinstance(error, InvalidInput):
        return replace(copy, state=StepState.CORRUPT, reason=f"its manifest cannot be read: {error}")
    return replace(copy, state=StepState.FOREIGN, reason=f"S3 refuses to show its manifest: {error}")


def pin_of(objects: BucketObjects, root: str) -> str:
    """Why the step at `root` is pinned, "" where it is not. A pin that cannot be read is one."""
    try:
        found = objects.get(root + PIN_NAME)
    except PermanentError as error:
        if not isinstance(error, InvalidInput) and not denied(error):
            raise
        return pins.UNREADABLE
    return pins.reason_of(found[0]) if found else ""


def flaw_of(shard: Shard, head: Callable[[], Mapping[str, Any]]) -> Flaw | None:
    """What is wrong with the object of this shard, None when it is proven. head: asks S3 for it, and may
    raise TransientError, which this raises too."""
    try:
        told = head()
    except PermanentError as error:
        if absent(error):
            return Flaw(shard.name, "it is missing", StepState.CORRUPT)
        why = "S3 refuses access to it" if denied(error) else f"S3 does not show it: {error}"
        return Flaw(shard.name, why, StepState.FOREIGN)
    size, checksum = int(told["ContentLength"]), str(told.get("ChecksumCRC64NVME", ""))
    if size != shard.size:
        reason = f"it has {size} bytes, the manifest says {shard.size}"
        return Flaw(shard.name, reason, StepState.CORRUPT)
    if not checksum or told.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        reason = "S3 has no CRC64NVME of the whole object, so it is not proven"
        return Flaw(shard.name, reason, StepState.COMPLETE)
    if checksum != shard.crc64nvme:
        return Flaw(shard.name, "its checksum is not the manifest's", StepState.CORRUPT)
    return None


def worst(flaws: Sequence[Flaw]) -> tuple[StepState, str]:
    """What the step is, and one sentence that names its gravest flaw."""
    gravest = min(flaws, key=lambda flaw: _GRAVEST.index(flaw.state))
    more = f" (and {len(flaws) - 1} others are not right)" if len(flaws) > 1 else ""
    return gravest.state, f"the object {gravest.name}: {gravest.reason}{more}"


def jobs_in(client: Any, bucket: str, prefix: str) -> dict[str, int]:
    """job -> how many readable manifests of steps directly below `prefix` are its; at most 50 are looked
    at."""
    objects, root = BucketObjects(client, bucket), f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    found: dict[str, int] = {}
    names = [name for name in objects.folders(root) if step_names.read(name)]
    for name in names[-_LOOKED_AT:]:
        try:
            body = objects.get(f"{root}{name}/{FILE_NAME}")
            job = Manifest.from_json(body[0]).lineage.job if body else ""
        except (InvalidInput, PermanentError):
            continue
        if job:
            found[job] = found.get(job, 0) + 1
    return found


def _lacking(manifest: Manifest, there: Mapping[str, int], whole: bool) -> str:
    missing = [shard for shard in manifest.shards if shard.name not in there] if whole else []
    if missing:
        return f"the object {missing[0].name} is missing ({len(missing)} of {len(manifest.shards)} are)"
    for shard in manifest.shards:
        size = there.get(shard.name, shard.size)
        if size != shard.size:
            return f"the object {shard.name} has {size} bytes, the manifest says {shard.size}"
    return ""


def _is_shard(name: str) -> bool:
    """FSx keeps a directory's own metadata in an object whose key ends with `/`."""
    return name not in ("", FILE_NAME, PIN_NAME) and not name.endswith("/")


def _has_own_index(names: Collection[str]) -> bool:
    """DCP and safetensors write an index last; a single file of torch or safetensors is whole once S3 shows
    it. Such a step is somebody's checkpoint, and not for a sweep to judge."""
    if any(name.rpartition("/")[2] == ".metadata" or name.endswith(".index.json") for name in names):
        return True
    return len(names) == 1 and next(iter(names)).endswith(_SINGLE)
