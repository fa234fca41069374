"""Sweep's part of the checkpoints' way to S3: every job's directory is looked at once in a while, whatever
signals came; a sync that died is made good; and CloudWatch is told how old the newest durable step is.
"""

from collections.abc import Mapping
from typing import Any

from lambdas import syncing, syncing_metrics
from lambdas.inventory import each
from planaria.core import job_facts, sync_claims
from planaria.core.incident import ACTIVE
from planaria.core.table import Row
from planaria.wiring import Gateways


def revive(gw: Gateways) -> int:
    """Also when an execution has failed just now."""
    if gw.cluster.checkpoints is None:
        return 0
    active = [row for row in sync_claims.listed(gw.table) if row.get("phase") in ACTIVE]
    return each(active, "sync", lambda row: syncing.revive(gw, row))


def keep(gw: Gateways, jobs: list[Row]) -> int:
    """Begin what is due. Returns how many."""
    if gw.cluster.checkpoints is None:
        return 0
    claims = {str(row["job_id"]): row for row in sync_claims.listed(gw.table)}
    due = [job for job in jobs if _due(gw, job, claims.get(str(job["job_id"]), {}))]
    begun = each(due, "sync of", lambda job: _begin(gw, job))
    syncing_metrics.ages(gw, jobs, claims)
    return begun


def _due(gw: Gateways, job: Row, claim: Mapping[str, Any]) -> bool:
    if claim.get("phase") in ACTIVE or syncing.why_not(gw, job):
        return False
    now, every = gw.clock.now(), gw.cluster.checkpoints.sync_seconds if gw.cluster.checkpoints else 0.0
    if "retry_at" in claim and now >= float(claim["retry_at"]):
        return True
    safe = claim.get("newest") == claim.get("durable") and "newest" in claim
    if job_facts.over(job) and safe:
        return False
    return now - float(claim.get("opened_at") or 0.0) >= every


def _begin(gw: Gateways, job: Row) -> bool:
    claim_id = f"sweep/{job['job_id']}/{int(gw.clock.now())}"
    return syncing.want(gw, job, "its time has come", claim_id) is not None
