"""Figures about checkpoints for CloudWatch: one line each in the log, in the embedded metric format.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from planaria.core import job_facts
from planaria.core.table import Row
from planaria.wiring import Gateways

NAMESPACE = "Planaria"
AGE, LAG, FAILURES = "CheckpointAgeMinutes", "CheckpointLagMinutes", "CheckpointSyncFailures"


def exposure(claim: Mapping[str, Any], now: float) -> tuple[float, float]:
    """(age, lag) in minutes, by the row of a job's sync. age: since the newest durable step was saved, or
    since the job was first looked at where none is durable yet. lag: by how much the newest whole step is
    newer than that."""
    durable, newest = claim.get("durable") or {}, claim.get("newest") or {}
    since = float(durable.get("saved_at") or claim.get("since") or now)
    lag = max(0.0, float(newest.get("saved_at") or since) - since)
    return max(0.0, now - since) / 60, lag / 60


def ages(gw: Gateways, jobs: Iterable[Row], claims: Mapping[str, Row]) -> None:
    """The worst of the running jobs; nothing where no job runs."""
    now = gw.clock.now()
    running = [job for job in jobs if job.get("state") == "RUNNING" and not job_facts.over(job)]
    told = [exposure(claims[job["job_id"]], now) for job in running if job["job_id"] in claims]
    if told:
        _emit(gw, {AGE: max(age for age, _ in told), LAG: max(lag for _, lag in told)}, "None")


def failed(gw: Gateways) -> None:
    """A sync ended failed, or a task of FSx did."""
    _emit(gw, {FAILURES: 1}, "Count")


def _emit(gw: Gateways, values: Mapping[str, float], unit: str) -> None:
    metrics = [{"Name": name, "Unit": unit} for name in values]
    directive = {"Namespace": NAMESPACE, "Dimensions": [["Cluster"]], "Metrics": metrics}
    head = {"Timestamp": int(gw.clock.now() * 1000), "CloudWatchMetrics": [directive]}
    print(json.dumps({"_aws": head, "Cluster": gw.cluster.name, **values}), flush=True)  # noqa: T201
