"""Which nodes look at a job's directory, and which copy from it: idle ones first, then the job's own."""

from collections.abc import Iterable

from planaria.core import job_facts
from planaria.core.errors import Waiting
from planaria.core.incident import ACTIVE
from planaria.core.plans import is_gone
from planaria.core.table import Row
from planaria.wiring import Gateways

MOST_COPIERS = 16


def witnesses(gw: Gateways, job: Row) -> list[str]:
    """Nodes that should see the job's directory, its own first. Raises Waiting when there is none."""
    able = [row for row in gw.ledger.nodes() if _works(row)]
    own = set(job["nodes"].values())
    found = [
        row["node_id"] for row in sorted(able, key=lambda row: (row["node_id"] not in own, row["node_id"]))
    ]
    if not found:
        raise Waiting(f"no node is there to look at the checkpoints of job {job['job_id']}")
    return found


def copiers(gw: Gateways, job: Row, chunks: int, zone: str = "") -> tuple[list[str], bool]:
    """(nodes, whether they are idle): those without a job where there are any, and may use all of their
    network; else the job's own, within the policy's share. At most so many as there are chunks. zone: of
    the file system; a node elsewhere pays for every byte. Raises Waiting when there is none."""
    able, busy = [row for row in gw.ledger.nodes() if _works(row)], _busy(gw.jobs.jobs())
    own = set(job["nodes"].values())
    idle = [row for row in able if row["node_id"] not in busy]
    chosen = idle or [row for row in able if row["node_id"] in own]
    if not chosen:
        raise Waiting(f"no node is there to copy checkpoints of job {job['job_id']}")
    nearest = sorted(chosen, key=lambda row: (_away(row, zone), row["node_id"]))
    return [str(row["node_id"]) for row in nearest[: max(1, min(chunks, MOST_COPIERS))]], bool(idle)


def _works(row: Row) -> bool:
    """It is there, reports, and nobody is healing it. An isolated node is not asked for anything."""
    up = row.get("state") == "running" and not is_gone(row) and row.get("phase") not in ACTIVE
    return up and not row.get("opted_out") and not row.get("isolation") and not row.get("lost")


def _busy(jobs: Iterable[Row]) -> set[str]:
    return {str(node) for job in jobs if not job_facts.over(job) for node in job["nodes"].values()}


def _away(row: Row, zone: str) -> bool:
    return bool(zone) and row.get("zone") not in (None, "", zone)
