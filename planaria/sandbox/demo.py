"""The demo: one node of a training cluster breaks, and the training goes on.

`run` does it and returns what happened; `planaria.cli.demo` shows it.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from planaria.cli import records
from planaria.core.errors import InvalidInput
from planaria.core.table import Row
from planaria.sandbox import saved_steps, slurm_cluster
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.job_folder import JobFolder, read_json
from planaria.sandbox.job_recipe import parse_job_recipe
from planaria.sandbox.kept_logs import LoggedWorld
from planaria.sandbox.plots import Breaks, TrainingPoint, png, read_points
from planaria.sandbox.world import DEMO_CLUSTER, ROOT, WorldConfig, default_folder

JOB_ID = "gpt-demo"
RECIPE = ROOT / "recipes/jobs/gpt-demo.yaml"

FAULTS = {
    "xid79": "Xid 79",
    "broken-gpu": "broken GPU",
    "spot": "spot interruption",
    "terminate": "instance terminated",
    "kill-rank": "process killed",
}
"""The faults that the demo can show, and what the plot calls them. `kill-rank` breaks the job and no node."""

CLUSTERS = {"process": DEMO_CLUSTER, "slurm": ROOT / "recipes/clusters/demo-slurm.yaml"}
"""The cluster file of each scheduler that the demo runs on."""

FIRST_STEPS = 40
"""Steps before the fault, so that the curve has a beginning."""

AFTER_SECONDS = 8.0
TRAINING_SECONDS = 90.0
INCIDENT_SECONDS = 60.0
HEALING_SECONDS = 180.0
POLL_SECONDS = 0.1

DOLLARS_PER_TRANSITION = 0.025 / 1000
"""Step Functions, standard workflows, us-east-1, list price (aws.amazon.com/step-functions/pricing)."""


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """folder: None takes a temporary one. keep: leave the sandbox running. scheduler: process, or slurm where
    it is installed. picture: where the PNG goes."""

    fault: str = "xid79"
    node: str = "demo-3"
    folder: Path | None = None
    port: int = 0
    keep: bool = False
    time_scale: float = 0.1
    boot_seconds: float = 3.0
    scheduler: str = "process"
    picture: Path = Path("planaria-demo.png")


@dataclass(frozen=True, slots=True)
class Watcher:
    """Is told what happens. stage: a sentence about what is being done now. broke: what was injected.
    step: the incident's row and a new step of it."""

    stage: Callable[[str], None]
    broke: Callable[[str], None]
    step: Callable[[Row, Row], None]

    def healing(self, waits: str) -> None:
        self.stage(f"healing: {waits}")


@dataclass(frozen=True, slots=True)
class Summary:
    """What happened. Seconds count from the moment at which the fault was injected unless they say else.

    lost_id and replacement_id: instance ids, "" where no node was touched. broke_at: the last step before
    the fault stopped the job. boot_seconds: launch (or reboot) to node ready. rank_seconds: process start
    to first collective, the slowest rank. transitions: state transitions of the workflows, 0 = unknown.
    """

    incident: Row
    steps: list[Row]
    fault: str
    node: str
    injected_at: float
    lost_id: str
    replacement_id: str
    broke_at: int
    resume_step: int
    first_step: int
    last_step: int
    back_seconds: float
    boot_seconds: float
    rank_seconds: float
    transitions: int
    points: list[TrainingPoint] = field(repr=False)
    picture: str = ""
    sandbox: str = ""

    @property
    def steps_lost(self) -> int:
        """Steps that had been done and are done again."""
        return max(0, self.broke_at - max(self.resume_step, 0))

    @property
    def control_seconds(self) -> float:
        """What is left of the recovery without the node's boot and the ranks' start-up."""
        return max(0.0, self.back_seconds - self.boot_seconds - self.rank_seconds)

    @property
    def dollars(self) -> float:
        return self.transitions * DOLLARS_PER_TRANSITION

    @property
    def breaks(self) -> Breaks:
        return Breaks(self.injected_at, f"{FAULTS[self.fault]} on {self.node}", self.resume_step)

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "incident": records.incident_document(self.incident, self.steps),
            "fault": self.fault,
            "node": self.node,
            "lost_id": self.lost_id or None,
            "replacement_id": self.replacement_id or None,
            "broke_at_step": self.broke_at,
            "resumed_from_step": self.resume_step,
            "steps_lost": self.steps_lost,
            "first_new_step": self.first_step,
            "last_step": self.last_step,
            "seconds": {
                "fault_to_first_new_step": round(self.back_seconds, 3),
                "node_boot": round(self.boot_seconds, 3),
                "rank_start": round(self.rank_seconds, 3),
                "control_plane": round(self.control_seconds, 3),
            },
            "state_transitions": self.transitions or None,
            "state_transitions_usd": round(self.dollars, 6) if self.transitions else None,
            "picture": self.picture or None,
            "sandbox": self.sandbox or None,
        }


def recipe(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The demo's job recipe, its training with these changes. Raises InvalidInput."""
    try:
        document = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{RECIPE} cannot be read ({error.strerror}); is this a whole clone?") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{RECIPE} is not YAML: {' '.join(str(error).split())}") from None
    if isinstance(document, dict) and isinstance(document.get("training"), dict):
        document["training"] |= changes or {}
    parse_job_recipe(document, str(RECIPE))
    return dict(document)


def run(config: DemoConfig, watcher: Watcher) -> Summary:
    """Blocks until the end. Raises SandboxError or InvalidInput with one sentence; whatever ends it, no
    process and no file is left, but for the picture, the logs of a failure and a sandbox to be kept."""
    _check_writable(config.picture)
    if config.scheduler == "slurm" and (lack := slurm_cluster.missing()):
        raise SandboxError(lack)
    with contextlib.ExitStack() as stack:
        if config.folder is not None:
            folder = config.folder
        elif config.keep:
            folder = default_folder("demo")
        else:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="planaria-demo-"))
            folder = Path(scratch) / "sandbox"
        world = LoggedWorld(
            WorldConfig(
                folder=folder,
                cluster_file=CLUSTERS[config.scheduler],
                time_scale=config.time_scale,
                boot_seconds=config.boot_seconds,
                port=config.port,
                outlive=config.keep,
            ),
            watcher.stage,
        )
        with world.ended_by_failure():
            world.up()
            summary = _Demo(config, watcher, world).run()
            if not config.keep:
                world.down()
        return summary


def _check_writable(picture: Path) -> None:
    """Two minutes are too long to learn of it only at the end."""
    folder = picture.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InvalidInput(f"the loss curve cannot be written to {picture}; choose another file with --png")


class _Demo:
    def __init__(self, config: DemoConfig, watcher: Watcher, world: LoggedWorld) -> None:
        self._config = config
        self._watcher = watcher
        self._world = world
        self._gateways = world.gateways()
        self._job_id = JOB_ID
        self._folder = JobFolder(world.job_folder(JOB_ID))

    def run(self) -> Summary:
        self._watcher.stage("starting the training job")
        document = recipe()
        self._job_id = self._world.submit(JOB_ID, document)
        self._folder = JobFolder(self._world.job_folder(self._job_id))
        self._train(int(document["training"]["save_every"]))
        injected_at = time.time()
        wish = {"fault": self._config.fault, "node": self._config.node}
        self._watcher.broke(str(self._world.head().post("/inject", wish)["injected"]))
        name = self._find_incident(injected_at)
        seen = records.follow(
            self._gateways, name, HEALING_SECONDS, self._watcher.step, self._watcher.healing, POLL_SECONDS
        )
        if not seen.ended:
            raise SandboxError(
                f"Incident {name} did not end within {HEALING_SECONDS:.0f} s; it waited until {seen.waits}."
            )
        if seen.head["outcome"] != "HEALED":
            why = seen.head.get("outcome_reason") or "no reason was recorded"
            raise SandboxError(f"Incident {name} ended {seen.head['outcome']}: {why}.")
        self._train_on(self._broke_at())
        return self._summary(name, injected_at)

    def _points(self) -> list[TrainingPoint]:
        return read_points(self._folder.train_log)

    def _train(self, save_every: int) -> None:
        """Until some steps are done, and some more since the newest complete checkpoint."""
        deadline = time.monotonic() + TRAINING_SECONDS
        shown = -1
        while True:
            points = self._points()
            step = points[-1].step if points else 0
            if step != shown:
                loss = f", loss {points[-1].loss:.2f}" if points else ""
                self._watcher.stage(f"training on four nodes: step {step}{loss}")
                shown = step
            since = step % save_every
            if step >= FIRST_STEPS and save_every // 3 <= since <= save_every * 2 // 3 and self._saved():
                return
            if (final := read_json(self._folder.final)) is not None:
                raise SandboxError(
                    f"The job was over (step {final.get('step')}) before anything could be broken; "
                    f"give it more steps in {RECIPE}."
                )
            if time.monotonic() > deadline:
                raise SandboxError(f"The job did not train: step {step} after {TRAINING_SECONDS:.0f} s.")
            time.sleep(0.02)

    def _saved(self) -> bool:
        return bool(saved_steps.usable(self._folder, self._job_id))

    def _find_incident(self, since: float) -> str:
        """The incident of the broken node; of the job where no node broke."""
        self._watcher.stage("waiting for the fault to be seen")
        lost = None if self._config.fault == "kill-rank" else self._lost_id()
        deadline = time.monotonic() + INCIDENT_SECONDS
        while time.monotonic() < deadline:
            for head in records.newest_first(self._gateways.ledger.incidents()):
                mine = head.get("node_id") == lost and head.get("job_id") == self._job_id
                if mine and float(head.get("opened_at", 0)) >= since - 1:
                    return str(head["incident_id"])
            time.sleep(POLL_SECONDS)
        raise SandboxError(
            f"Nothing noticed the fault {self._config.fault} on {self._config.node} "
            f"within {INCIDENT_SECONDS:.0f} s."
        )

    def _lost_id(self) -> str:
        """The instance that had the node's name when the job began."""
        job = self._gateways.jobs.job(self._job_id) or {}
        rows = {row["node_id"]: row for row in self._gateways.ledger.nodes()}
        if self._config.node in rows:
            return self._config.node
        for node in job.get("nodes", {}).values():
            if rows.get(node, {}).get("name") == self._config.node:
                return str(node)
        return records.find_node(rows.values(), self._config.node)

    def _broke_at(self) -> int:
        """The last step of the first attempt."""
        return max((p.step for p in self._points() if p.attempt == self._points()[0].attempt), default=0)

    def _train_on(self, broke_at: int) -> None:
        """Past the step where it broke, and then for some seconds or to the job's end."""
        deadline = time.monotonic() + TRAINING_SECONDS
        until = None
        while True:
            points = self._points()
            last = points[-1]
            self._watcher.stage(f"training goes on: step {last.step}, loss {last.loss:.2f}")
            over = self._folder.final.exists()
            if last.attempt > points[0].attempt and last.step > broke_at:
                until = until or time.monotonic() + AFTER_SECONDS
                if over or time.monotonic() > until:
                    return
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"The job was resumed but did not pass step {broke_at} within {TRAINING_SECONDS:.0f} s."
                )
            time.sleep(0.05)

    def _summary(self, name: str, injected_at: float) -> Summary:
        head, steps = records.read_incident(self._gateways, name)
        points = self._points()
        attempt = points[-1].attempt
        new = [point for point in points if point.attempt == attempt]
        at = {row["step"]: float(row["at"]) for row in steps}
        began = at.get("replacement_launched", at.get("rebooted", 0.0))
        config = self._config
        summary = Summary(
            incident=head,
            steps=steps,
            fault=config.fault,
            node=config.node,
            injected_at=injected_at,
            lost_id=str(head.get("node_id") or ""),
            replacement_id=str(head.get("replacement_id") or ""),
            broke_at=self._broke_at(),
            resume_step=int(head.get("resume_step", -1)),
            first_step=new[0].step,
            last_step=points[-1].step,
            back_seconds=new[0].at - injected_at,
            boot_seconds=max(0.0, at["node_ready"] - began) if "node_ready" in at and began else 0.0,
            rank_seconds=self._rank_seconds(attempt),
            transitions=self._transitions(head),
            points=points,
            picture=str(config.picture),
            sandbox=str(self._world.folder) if config.keep else "",
        )
        png(points, summary.breaks, config.picture)
        return summary

    def _rank_seconds(self, attempt: int) -> float:
        """Process start to first collective of the attempt's slowest rank."""
        marks = [read_json(path) for path in (self._folder.attempts / str(attempt)).glob("rank-*.ready")]
        times = [(float(m["forked_at"]), float(m["first_collective_at"])) for m in marks if m]
        return max(end for _, end in times) - min(begin for begin, _ in times) if times else 0.0

    def _transitions(self, head: Row) -> int:
        """State transitions of the incident's workflow and of the job's resume; 0 = unknown."""
        job = self._gateways.jobs.job(self._job_id) or {}
        client = self._world.emulator.client("stepfunctions") if self._world.emulator else None
        if client is None:
            return 0
        count = 0
        for arn in {head.get("execution_arn"), job.get("resume_arn")} - {None}:
            pages = client.get_paginator("get_execution_history").paginate(executionArn=arn)
            count += sum(event["type"].endswith("StateEntered") for page in pages for event in page["events"])
        return count
