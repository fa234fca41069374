"""One sandbox for all end-to-end tests: the emulator with IAM enforcement on, and four nodes."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from planaria.core.table import Row
from planaria.sandbox.world import ROOT, World, WorldConfig

HERE = Path(__file__).parent
SCALE = 0.1


class Bench:
    """The sandbox with the few questions that the tests ask of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gw = world.gateways()
        self.recipe: dict[str, Any] = yaml.safe_load((ROOT / "recipes/jobs/gpt-demo.yaml").read_text())

    def until(self, what: str, found: Callable[[], Any], seconds: float = 60.0) -> Any:
        """The first true value of `found`, or a failure that says what was waited for."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = found()
            if value:
                return value
            time.sleep(0.1)
        incidents = [
            {k: row.get(k) for k in ("incident_id", "action", "outcome", "outcome_reason")}
            for row in self.gw.ledger.incidents()
        ]
        pytest.fail(f"no {what} within {seconds:.0f} s; incidents: {json.dumps(incidents)}")

    def submit(self, job: str, **training: Any) -> None:
        recipe = {**self.recipe, "name": job, "training": {**self.recipe["training"], **training}}
        self.until("idle nodes", self.idle)
        self.world.submit(job, recipe)

    def idle(self) -> bool:
        nodes = self.world.head().get("/status")["scheduler"].values()
        return all(node["state"] == "IDLE" for node in nodes)

    def inject(self, fault: str, node: str, **wish: Any) -> float:
        at = time.time()
        self.world.head().post("/inject", {"fault": fault, "node": node, **wish})
        return at

    def node(self, name: str) -> str:
        """The instance that has this scheduler name now."""
        return str(self.world.head().get("/status")["scheduler"][name]["node_id"])

    def steps(self, job: str) -> list[dict[str, Any]]:
        try:
            lines = (self.world.job_folder(job) / "train.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def train_to(self, job: str, step: int, attempt: int = 1) -> None:
        def there() -> bool:
            return any(s["step"] >= step and s["attempt"] >= attempt for s in self.steps(job)[-5:])

        self.until(f"step {step} of {job}", there)

    def final(self, job: str, seconds: float = 90.0) -> dict[str, Any]:
        path = self.world.job_folder(job) / "final.json"
        self.until(f"end of {job}", path.exists, seconds)
        return dict(json.loads(path.read_text()))

    def incident(self, node: str, outcome: str = "HEALED", seconds: float = 60.0) -> Row:
        """The node's only incident, once it has ended."""

        def ended() -> Row | None:
            return next((r for r in self.incidents_of(node) if "outcome" in r), None)

        row: Row = self.until(f"ended incident of {node}", ended, seconds)
        assert row["outcome"] == outcome, row
        return row

    def incidents_of(self, node: str) -> list[Row]:
        return [row for row in self.gw.ledger.incidents() if row.get("node_id") == node]

    def timeline(self, incident: str) -> dict[str, float]:
        return {row["step"]: float(row["at"]) for row in self.gw.ledger.incident(incident)[1]}

    def resumed(self, job: str, since: int, seconds: float = 60.0) -> Row:
        """The job's row once a resume after attempt `since` has ended well. A number may be skipped: a
        resume that a rank's exit opened stands down when a node fault arrives."""

        def over() -> Row | None:
            row = self.gw.jobs.job(job) or {}
            done = row.get("resume_number", 0) > since and row.get("resume_phase") == "HEALED"
            return row if done and not row["pending"] else None

        return dict(self.until(f"resume of {job} after attempt {since}", over, seconds))

    def instances(self) -> list[str]:
        """Instances of the cluster that have not ended."""
        return [i.node_id for i in self.gw.fleet.cluster() if i.state == "running"]

    def outcomes(self, **match: Any) -> list[Row]:
        """Recorded outcomes of events, newest last."""
        client = self.world.emulator.client("dynamodb") if self.world.emulator else None
        assert client is not None
        from planaria.aws.dynamodb import _plain

        pages = client.get_paginator("scan").paginate(TableName="planaria-e2e")
        rows = [_plain(item) for page in pages for item in page["Items"]]
        found = [
            r for r in rows if r["pk"].startswith("EVENT#") and all(r.get(k) == v for k, v in match.items())
        ]
        return sorted(found, key=lambda row: float(row["at"]))

    def queue_depth(self, part: str) -> int:
        assert self.world.emulator is not None
        sqs = self.world.emulator.client("sqs")
        url = sqs.get_queue_url(QueueName=f"planaria-e2e-{part}")["QueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(value) for value in attributes.values())


@pytest.fixture(scope="package")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("ministack", reason="the emulator is not installed")
    folder = tmp_path_factory.mktemp("e2e") / "sandbox"
    config = WorldConfig(
        folder, HERE / "cluster.yaml", time_scale=SCALE, boot_seconds=1.5, auth=True, direct=True
    )
    with World(config) as world:
        yield Bench(world)
