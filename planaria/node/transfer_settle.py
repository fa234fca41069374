"""The end of a transfer, on the file system: a step that was fetched gets its name, a step that was written
without us gets its manifest. Until then neither is anything that a job would start from."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from planaria.aws.transfer import Engine
from planaria.checkpoint import sealing, writing
from planaria.checkpoint.checksums import Sum
from planaria.checkpoint.directory import FileCheckpoints
from planaria.core import manifest as manifests
from planaria.core.errors import InvalidInput, PermanentError, TransientError, Waiting
from planaria.core.manifest import Manifest
from planaria.core.transfer_ledger import PLAN, TransferLedger
from planaria.core.transfers import Cause, Mode
from planaria.node import transfer_plan
from planaria.node.transfer_plan import SCRATCH, Plan, key
from planaria.node.transfer_setting import Setting
from planaria.node.tree import Tree, is_scratch

MARKER = ".planaria"
"""In a job's folder: the file system is mounted (planaria/slurm/in_job.py)."""
Answer = dict[str, Any]


def settle(
    job: str,
    directory: Path,
    transfer: str,
    setting: Setting,
    ledger: TransferLedger,
    clock: Callable[[], float] = time.time,
) -> Answer:
    """-> {"state", "reason", "cause", "place", "digest"}. Repeated it answers the same."""
    with contextlib.closing(setting.engine()) as engine:
        return _settle(job, directory, transfer, engine, ledger, clock)


def _settle(
    job: str,
    directory: Path,
    transfer: str,
    engine: Engine,
    ledger: TransferLedger,
    clock: Callable[[], float],
) -> Answer:
    plan = transfer_plan.read(engine, transfer)
    if plan is None:
        return _answer("partial", f"transfer {transfer} was never planned", Cause.OTHER)
    if plan.job != job or plan.root.parent != directory:
        whose = f"job {plan.job} in {plan.root.parent}"
        raise InvalidInput(f"transfer {transfer} is of {whose}, not of {job} in {directory}")
    body = transfer_plan.read_object(engine, key(transfer, "result.json"))
    if body is None:
        return _unfinished(plan, ledger)
    result = transfer_plan.whole(body)
    if plan.mode is Mode.FETCH:
        return _fetched(plan, result, engine)
    return _hashed(plan, result, engine, clock)


def _unfinished(plan: Plan, ledger: TransferLedger) -> Answer:
    """One that was cancelled leaves nothing behind."""
    row = ledger.table.get(f"TRANSFER#{plan.transfer}", PLAN)
    if row is not None and not row.get("cancelled"):
        return _answer("partial", f"transfer {plan.transfer} has not come to its end yet", Cause.OTHER)
    if plan.mode is Mode.FETCH:
        shutil.rmtree(plan.root, ignore_errors=True)
    return _answer("partial", f"transfer {plan.transfer} was cancelled", Cause.OTHER)


# --- fetched ----------------------------------------------------------------------------------------------


def _fetched(plan: Plan, result: Mapping[str, Any], engine: Engine) -> Answer:
    assert plan.root.name.endswith(SCRATCH)
    directory, place = plan.root.parent, plan.root.parent / plan.name
    store = FileCheckpoints(directory, plan.job)
    manifest_body = transfer_plan.read_object(engine, key(plan.transfer, "manifest.json"))
    if manifest_body is None:
        return _answer("partial", "the manifest of the transfer is gone", Cause.OTHER)
    manifest = Manifest.from_json(manifest_body)
    digest = manifests.digest(manifest.to_json())
    there = store.look(plan.name)
    if there is not None and there.usable and there.digest == digest:
        shutil.rmtree(plan.root, ignore_errors=True)
        _mark(directory)
        return _answer("complete", "", None, place, digest)
    if result["failed"]:
        shutil.rmtree(plan.root, ignore_errors=True)
        return _failed(result["failed"])
    if lacking := _lacking(plan.root, manifest):
        shutil.rmtree(plan.root, ignore_errors=True)
        return _answer("partial", lacking, Cause.OTHER)
    try:
        with Tree(plan.root) as tree:
            tree.sync()
        _give_to_owner(plan.root, directory)
        writing.write_once(plan.root, manifest.to_json())
        _give_to_owner(plan.root, directory)
        store.publish(plan.root.name, plan.name)
    except TransientError as error:
        return _answer("partial", str(error), Cause.OTHER)
    except PermanentError as error:
        shutil.rmtree(plan.root, ignore_errors=True)
        return _answer("foreign", str(error), Cause.OTHER)
    _mark(directory)
    return _answer("complete", "", None, place, digest)


def _lacking(root: Path, manifest: Manifest) -> str:
    """One sentence where not exactly the files of the manifest are there. Their bytes were checked as they
    came."""
    try:
        with Tree(root) as tree:
            found = tree.walk(hidden=True)
            for name in [each for each in found.files if is_scratch(each)]:
                tree.remove(name)
                del found.files[name]
    except OSError as error:
        return f"{root} cannot be read: {error.strerror}"
    wanted = {shard.name: shard.size for shard in manifest.shards}
    sizes = {name: told[0] for name, told in found.files.items()}
    wrong = sorted(name for name in wanted.keys() | sizes.keys() if wanted.get(name) != sizes.get(name))
    if found.refused:
        wrong.append(found.refused[0].name)
    return f"{root} does not hold what the manifest names ({wrong[0]!r:.200})" if wrong else ""


def _give_to_owner(root: Path, directory: Path) -> None:
    """The agent works as root; the job's files belong to whom its folder belongs."""
    owner = directory.stat()
    if os.geteuid() != 0 or (owner.st_uid, owner.st_gid) == (os.geteuid(), os.getegid()):
        return
    for folder, below, names in os.walk(root):
        for name in (*below, *names, "."):
            os.chown(f"{folder}/{name}", owner.st_uid, owner.st_gid, follow_symlinks=False)


def _mark(directory: Path) -> None:
    try:
        (directory / MARKER).touch(exist_ok=True)
        _give_to_owner_file(directory / MARKER, directory)
    except OSError:
        return  # the job's start looks for it and says what is wrong


def _give_to_owner_file(path: Path, directory: Path) -> None:
    owner = directory.stat()
    if os.geteuid() == 0 and path.stat().st_uid != owner.st_uid:
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


# --- hashed or copied -------------------------------------------------------------------------------------


def _hashed(plan: Plan, result: Mapping[str, Any], engine: Engine, clock: Callable[[], float]) -> Answer:
    if result["failed"]:
        return _failed(result["failed"])
    directory = plan.root.parent
    store = FileCheckpoints(directory, plan.job)
    there = store.look(plan.name)
    if there is None:
        return _answer("partial", f"{plan.root} is not there any more", Cause.BAD)
    if not there.usable:
        sums = {str(name): Sum(int(size), str(crc)) for name, size, crc in result["files"]}
        try:
            manifest = sealing.seal(
                plan.root, plan.step, plan.lineage, sums=sums, seen=plan.seen or None, now=clock()
            )
            store.commit(manifest, plan.name)
        except sealing.NotSealable as error:
            return _answer(error.state.value, str(error), Cause.BAD)
        except Waiting as error:
            return _answer("partial", str(error), Cause.CHANGED)
        except TransientError as error:
            return _answer("partial", str(error), Cause.OTHER)
        except PermanentError as error:
            return _answer("foreign", str(error), Cause.BAD)
        there = store.look(plan.name)
        if there is None or not there.usable:
            reason = there.reason if there else "it went away"
            return _answer("partial", f"{plan.root} is not whole: {reason}", Cause.CHANGED)
    manifest = store.manifest(there)
    if wrong := _other(manifest, result):
        return _answer("corrupt", wrong, Cause.BAD)
    body = manifest.to_json()
    engine.put(key(plan.transfer, "manifest.json"), body)
    return _answer("complete", "", None, plan.root, manifests.digest(body))


def _other(manifest: Manifest, result: Mapping[str, Any]) -> str:
    """One sentence where the files that were read are not those of the manifest."""
    wanted = {shard.name: [shard.size, shard.crc64nvme] for shard in manifest.shards}
    read = {str(name): [int(size), str(crc)] for name, size, crc in result["files"]}
    wrong = sorted(name for name in wanted.keys() | read.keys() if wanted.get(name) != read.get(name))
    return f"{wrong[0]!r:.200} is not what the manifest says" if wrong else ""


def _failed(failed: list[dict[str, str]]) -> Answer:
    """The gravest of the failures speaks for all: BAD of the copy, FULL of the disk."""
    order = [Cause.FULL, Cause.BAD, Cause.DENIED, Cause.CHANGED, Cause.OTHER]
    worst = min(failed, key=lambda each: order.index(Cause(each["cause"])))
    cause = Cause(worst["cause"])
    more = f" ({len(failed)} files in all)" if len(failed) > 1 and cause is not Cause.FULL else ""
    said = worst["reason"] if cause is Cause.FULL else f"{worst['name']}: {worst['reason']}{more}"
    return _answer("corrupt" if cause is Cause.BAD else "partial", said, cause)


def _answer(
    state: str, reason: str, cause: Cause | None, place: Path | None = None, digest: str = ""
) -> Answer:
    return {
        "state": state,
        "reason": reason[:500],
        "cause": cause.value if cause else "",
        "place": str(place or ""),
        "digest": digest,
    }
