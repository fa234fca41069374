"""What saves and copies left unfinished and nobody has touched for long, in S3 and on the file system:
swept away once in a while, never what a sync or a restore is at. What cannot be removed is said, and fails
nothing.
"""

from typing import Any

from lambdas import sync_nodes, syncing
from lambdas.boundary import Event, ask_command, logger
from planaria.core import restores, sync_claims
from planaria.core.errors import PermanentError, TransientError, Waiting
from planaria.core.incident import ACTIVE
from planaria.core.sync_claims import Sync
from planaria.core.table import Row
from planaria.wiring import Gateways

DOCUMENT = "planaria-sweep-checkpoints"
PARTS = 24
"""So often it is looked within the time after which something counts as abandoned."""


def sweep(gw: Gateways, event: Event, job: Row, claim: Row) -> None:
    """Raises Waiting while a node is at it."""
    policy, now = gw.cluster.checkpoints, gw.clock.now()
    if policy is None or now - float(claim.get("swept_at") or 0.0) < policy.sweep_seconds / PARTS:
        return
    active, folder = _active(gw, job, claim), syncing.folder_of(job)
    place = policy.place(folder)
    if DOCUMENT not in (event.get("carry") or {}):
        _in_s3(gw, job, place.url if place else "", now - policy.sweep_seconds, active)
    _on_file_system(gw, event, job, folder, policy.sweep_seconds, active)
    sync_claims.write(gw.table, Sync.of(claim), {"swept_at": now})


def _in_s3(gw: Gateways, job: Row, url: str, before: float, active: list[str]) -> None:
    try:
        removed = gw.checkpoints(str(job["job_id"]), url).sweep(before, active)
    except (PermanentError, TransientError) as error:
        logger.warning("not all that is abandoned in S3 was removed", extra={"reason": str(error)})
        return
    if removed:
        logger.info("removed from S3 as abandoned", extra={"job_id": job["job_id"], "removed": removed[:20]})


def _on_file_system(
    gw: Gateways, event: Event, job: Row, folder: str, seconds: float, active: list[str]
) -> None:
    node = sync_nodes.witnesses(gw, job)[0]
    parameters = {"Job": str(job["job_id"]), "Directory": folder, "Hours": f"{seconds / 3600:.3f}"}
    parameters["Active"] = ",".join(active)
    carry: dict[str, Any] = dict(event.get("carry") or {})
    node = str(carry.get("sweeper") or node)
    try:
        entry = ask_command(gw, event, DOCUMENT, [node], parameters).get(node) or {}
    except Waiting as wait:
        raise Waiting(str(wait), {**wait.carry, "sweeper": node} if wait.carry else {}) from None
    if entry.get("status") != "SUCCESS":
        logger.warning("nothing abandoned was removed", extra={"node": node, "reason": entry.get("output")})


def _active(gw: Gateways, job: Row, claim: Row) -> list[str]:
    """Names of the directories that somebody works on now."""
    names = [str(claim["work"]["name"])] if claim.get("work") else []
    restore = restores.read(gw.table, str(job["job_id"]))
    if restore.get("phase") in ACTIVE and restore.get("work"):
        names.append(str(restore["work"].get("name") or ""))
    return sorted({name for name in names if name})
