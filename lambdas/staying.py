"""A node that works until its replacement is ready: AWS ends it later, or only would like to have it back.

No job is stopped for such an end while there is no capacity to go on with. A node of an Auto Scaling group
does not wait: the group launches another only once this one has left it.
"""

from lambdas.boundary import Fields
from planaria.core import planned
from planaria.core.errors import CapacityError, Waiting
from planaria.core.signal import Kind
from planaria.core.table import Conflict, Row, missing
from planaria.wiring import Gateways

SOON_SECONDS = 10.0


def stays(gw: Gateways, row: Row) -> bool:
    """The node is not taken out of work yet, and no job is to wait for it."""
    groups = gw.cluster.node_groups
    group = groups.get(row.get("group") or next(iter(groups)))
    launches = group is not None and not group.auto_scaling_group
    unaware = gw.cluster.scheduler != "process"
    return launches and planned.stays(row, gw.cluster.policy, gw.clock.now(), unaware)


def jobs_to_wait(gw: Gateways, row: Row) -> list[str]:
    """The jobs that go on only when this node is healed, by their ids."""
    if stays(gw, row):
        return []
    return sorted({row.get("job_id") or "", *row.get("stopped_jobs", [])} - {""})


def await_replacement(gw: Gateways, row: Row) -> None:
    """Raises Waiting until the replacement has reported, or is given up: the next call launches another. A
    job that stands still for another node is stopped now, so that it is once and not twice."""
    instance = row["launch"].get("instance_id")
    new = (gw.ledger.node(instance) or {}) if instance else {}
    job = gw.jobs.job(str(row.get("job_id"))) or {}
    if not instance or "ready_at" in new or job.get("pending") or job.get("unresolved"):
        return
    held = gw.clock.now() - float(row["launch"]["at"])
    if held > gw.cluster.policy.boot_timeout_seconds:
        try:
            reason = f"it has not reported for {held:.0f} s after its launch"
            gw.ledger.note_node(instance, {"lost": reason}, when=missing("lost") & missing("ready_at"))
        except Conflict:
            pass  # it is known as lost already, or reports this very moment
    raise Waiting(f"{instance} is not ready yet; {row['node_id']} works until it is")


def due(row: Row, why: str) -> Fields:
    """DUE: the node is taken out now, replacement or not, for AWS ends it in any case. NOT_NOW: it was only
    advised to be moved and there is nowhere to move it to, so it works on."""
    advised = (row.get("fault") or {}).get("kind") == Kind.REBALANCE
    if advised and not (row.get("launch") or {}).get("instance_id"):
        return {"result": "NOT_NOW", "reason": f"it is not moved, for there was nowhere to move it to: {why}"}
    return {"result": "DUE", "reason": why}


def no_later(gw: Gateways, row: Row, error: CapacityError) -> CapacityError:
    """The same, asked again no later than the node can wait."""
    left = planned.isolate_by(row, gw.cluster.policy) - gw.clock.now()
    error.retry_after = int(min(error.retry_after, max(left, SOON_SECONDS)))
    return error
