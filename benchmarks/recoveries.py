"""One deployed sandbox with a training job, whose nodes are broken one after the other."""

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import timelines
from benchmarks.costs import Usage
from benchmarks.observed import Observer
from benchmarks.timelines import Marks
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.job_folder import JobFolder, read_json
from planaria.sandbox.kept_logs import LoggedWorld
from planaria.sandbox.world import ROOT, WorldConfig

CLUSTER = Path(__file__).with_name("cluster.yaml")
RECIPE = ROOT / "recipes/jobs/gpt-demo.yaml"
JOB = "bench"
NODES = ("bench-3", "bench-2", "bench-4", "bench-1")
ENDLESS = 10_000_000  # steps
FIRST_STEPS = 25  # before the first fault, so that there is a checkpoint to resume from
FRESH_STEPS = 10  # steps of the present attempt before the next fault
QUIET_SECONDS = 1.5  # without a new invocation a recovery is over
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.1
LAST_LINES_BYTES = 500


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery. marks give the segments, usage the cost; calls: invocations by function.

    start_delay: seconds of it in which the emulator slept before the executions' first states. load: the
    machine's load average over one minute at the end, of which the job's own ranks are up to four.
    """

    fault: str
    marks: Marks
    beside: timelines.Beside
    usage: Usage
    calls: dict[str, int]
    start_delay: float
    load: float

    @property
    def segments(self) -> dict[str, float]:
        return timelines.split(self.marks)

    @property
    def total(self) -> float:
        return self.marks.first_step - self.marks.fault

    @property
    def control(self) -> float:
        return timelines.control_seconds(self.segments)

    def document(self) -> dict[str, Any]:
        """Everything, for who wants to look at single recoveries."""
        segments = {name: round(seconds, 4) for name, seconds in self.segments.items()}
        return {**asdict(self), "segments": segments, "total": self.total, "control": self.control}


class Cluster:
    """One deployed sandbox with a training job that never ends."""

    def __init__(self, world: LoggedWorld) -> None:
        assert world.emulator is not None
        self._world = world
        self._gateways = world.gateways()
        self._observer = Observer(world.emulator, world.file.name)
        self._sqs = world.emulator.client("sqs")
        self._folder = JobFolder(world.job_folder(JOB))

    def train(self) -> None:
        recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
        recipe["training"]["steps"] = ENDLESS
        self._world.submit(JOB, recipe)

    def recover(self, fault: str, name: str) -> Recovery:
        """Break the node of this name and wait until all is over.

        Raises SandboxError when it is not healed.
        """
        before = self._ready()
        node = str(self._world.head().get("/status")["scheduler"][name]["node_id"])
        time.sleep(random.random())  # so that no poll of anything keeps step with the faults
        at = time.time()
        self._world.head().post("/inject", {"fault": fault, "node": name})
        # The file costs the emulator nothing; asking it all the time would be part of what is measured.
        self._until("step of a new attempt", lambda: self._attempt_of_last_step() > before)
        incident = self._until(f"end of the incident of {name}", lambda: self._ended(node))
        if incident["outcome"] != "HEALED":
            raise SandboxError(
                f"The incident of {name} ended {incident['outcome']}: {incident['outcome_reason']}."
            )
        job = self._until("end of the resume", lambda: self._resumed(before))
        self._quiet(at)
        timeline = {row["step"]: float(row["at"]) for row in self._ledger_steps(incident["incident_id"])}
        usage, calls = self._observer.usage(at)
        heal = self._observer.history(incident["execution_arn"])
        resume = self._observer.history(job["resume_arn"])
        marks = self._marks(at, timeline, resume, int(job["attempt"]))
        delay = sum(_start_delay(events) for events in (heal, resume))
        beside = timelines.beside(timeline)
        return Recovery(fault, marks, beside, usage, calls, delay, os.getloadavg()[0])

    # --- waiting -------------------------------------------------------------------------------------

    def _ready(self) -> int:
        """The present attempt, once it trains well on four healthy nodes and nothing is under way."""

        def ready() -> int | None:
            job = self._gateways.jobs.job(JOB) or {}
            if (
                job.get("pending")
                or job.get("unresolved")
                or job.get("resume_phase") in ("CLAIMED", "RUNNING")
            ):
                return None
            steps = self._steps()
            fresh = sum(one["attempt"] == job["attempt"] for one in steps)
            if fresh < FRESH_STEPS or steps[-1]["step"] < FIRST_STEPS or self._messages():
                return None
            nodes = self._world.head().get("/status")["scheduler"].values()
            healthy = sum(node["isolated"] is None and node["state"] == "ALLOCATED" for node in nodes)
            return int(job["attempt"]) if healthy == len(NODES) else None

        return int(self._until("training on four healthy nodes", ready))

    def _ended(self, node: str) -> dict[str, Any] | None:
        rows = self._gateways.ledger.incidents()
        return next((row for row in rows if row.get("node_id") == node and "outcome" in row), None)

    def _resumed(self, before: int) -> dict[str, Any] | None:
        job = self._gateways.jobs.job(JOB) or {}
        over = (
            int(job.get("attempt", 0)) > before and job.get("resume_phase") == "HEALED" and not job["pending"]
        )
        return job if over else None

    def _quiet(self, since: float) -> None:
        """Until the last events, of the old instance's end for one, have been judged."""
        last, at = -1, time.monotonic()

        def quiet() -> bool:
            nonlocal last, at
            number = len(self._observer.invocations(since))
            if number != last:
                last, at = number, time.monotonic()
            time.sleep(0.2)
            return time.monotonic() - at > QUIET_SECONDS and not self._messages()

        self._until("quiet", quiet)

    def _until(self, what: str, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (value := found()):
            if time.monotonic() > deadline:
                raise SandboxError(f"No {what} within {PATIENCE_SECONDS:.0f} s.")
            time.sleep(POLL_SECONDS)
        return value

    def _messages(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        number = 0
        for lane in ("urgent", "normal"):
            url = self._sqs.get_queue_url(QueueName=f"planaria-{self._world.file.name}-{lane}")["QueueUrl"]
            found = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
            number += sum(int(value) for value in found.values())
        return number

    # --- marks ---------------------------------------------------------------------------------------

    def _ledger_steps(self, incident: str) -> list[dict[str, Any]]:
        return self._gateways.ledger.incident(incident)[1]

    def _attempt_of_last_step(self) -> int:
        with self._folder.train_log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_LINES_BYTES))
            lines = log.read().split(b"\n")
        return max((int(json.loads(text)["attempt"]) for text in lines[1:] if text.endswith(b"}")), default=0)

    def _steps(self) -> list[dict[str, Any]]:
        try:
            lines = self._folder.train_log.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(text) for text in lines if text.endswith("}")]

    def _marks(
        self, at: float, timeline: Mapping[str, float], resume: Sequence[Mapping[str, Any]], attempt: int
    ) -> Marks:
        folder = self._folder.attempts / str(attempt)
        ranks = [found for path in sorted(folder.glob("rank-*.ready")) if (found := read_json(path))]
        first = next(step for step in self._steps() if step["attempt"] == attempt)
        return Marks(
            fault=at,
            detected=timeline["detected"],
            triaged=timeline["triaged"],
            begun=timeline["begun"],
            launched=timeline["replacement_launched"],
            ready=timeline["node_ready"],
            joined=timeline["node_joined"],
            resume_started=resume[0]["timestamp"].timestamp(),
            resume_begun=timelines.state_times(resume, "Begin")[1],
            checkpoint_chosen=timelines.state_times(resume, "Choose the checkpoint")[1],
            forked=min(float(rank["forked_at"]) for rank in ranks),
            met=max(float(rank["first_collective_at"]) for rank in ranks),
            first_step=float(first["at"]),
        )


def _start_delay(events: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from an execution's start to its first state: the emulator sleeps there, AWS hardly does."""
    first = next(event for event in events if str(event["type"]).endswith("StateEntered"))
    return float(first["timestamp"].timestamp() - events[0]["timestamp"].timestamp())


@contextmanager
def deployed(boot_seconds: float, time_scale: float, progress: Callable[[str], None]) -> Iterator[Cluster]:
    """A sandbox in a folder of its own; nothing is left of it, but for the logs of a failure."""
    with tempfile.TemporaryDirectory(prefix="planaria-bench-") as scratch:
        config = WorldConfig(
            Path(scratch) / "sandbox", CLUSTER, time_scale=time_scale, boot_seconds=boot_seconds, direct=True
        )
        world = LoggedWorld(config, progress)
        with world.ended_by_failure():
            world.up()
            cluster = Cluster(world)
            progress("starting the training job")
            cluster.train()
            yield cluster
            world.down()
