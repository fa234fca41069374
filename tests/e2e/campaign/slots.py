"""One place of the campaign: a job of two nodes, to the second of which the stories happen."""

import contextlib
import shutil
import time
from dataclasses import dataclass
from typing import Any

from planaria.checkpoint.directory import FileCheckpoints
from planaria.cli.approve import give
from planaria.core import approval, sync_claims, tags
from planaria.core.approval import Answer
from planaria.core.checkpoint_ledger import CheckpointLedger
from planaria.core.errors import PlanariaError
from planaria.core.incident import ACTIVE, incident_id
from planaria.core.ports import LaunchRequest
from planaria.core.saved_step import newest_first
from planaria.core.table import Row
from planaria.sandbox.faults import XID_79
from planaria.sandbox.job_folder import JobFolder
from planaria.sandbox.world import submit_job
from planaria.wiring import Gateways
from tests.e2e.campaign.places import Case, Findings, Place, Wrong, lasting
from tests.e2e.campaign.world import CampaignWorld
from tests.e2e.fault_cases import ISOLATE, LAUNCH, STORIES, Story

NODES_OF_A_JOB = 2

RETIRED_SECONDS = 3600.0
"""Until the date of a retirement: less than the lead in the campaign's time, so that it is answered at once,
and long enough to wait for the replacement."""

_RETIREMENT = {
    "version": 1, "kind": "scheduled_event", "code": "instance-retirement", "description": "retirement",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Before:
    """What the place was like before a story began."""

    node: str
    session: int
    resume: int
    attempt: int
    at: float


class Slot(Place):
    """Its job has the name of the place."""

    def __init__(self, world: CampaignWorld, gw: Gateways, number: int) -> None:
        super().__init__(world, gw, number)
        self.job = self.name
        self.head = world.head()

    @staticmethod
    def named(number: int, gw: Gateways) -> str:
        return f"{gw.cluster.name}{number}"

    # --- the place -----------------------------------------------------------------------------------

    def settle_in(self) -> None:
        """Launch the nodes and start the job on them."""
        group = next(iter(self.gw.cluster.node_groups.values()))
        offering = group.offerings[0]
        names = [f"{self.job}-{letter}" for letter in "ab"[:NODES_OF_A_JOB]]
        for name in names:
            marks = {tags.GROUP: group.name, tags.NAME: name}
            self.gw.fleet.launch(
                LaunchRequest(
                    f"first-{name}",
                    group.launch_template,
                    offering.instance_type,
                    offering.subnet,
                    offering.capacity,
                    marks,
                )
            )
        # Another place's job may have taken one of them, and leaves one of its own for that.
        up = ("IDLE", "ALLOCATED")
        self.until("booted nodes", lambda: all(self._state(name) in up for name in names), 60)
        # Triage has taken in what they reported: what the ledger knows of a node begins with that.
        self.until("known nodes", lambda: set(names) <= {r.get("name") for r in self.gw.ledger.nodes()}, 60)
        with self.world.submitting:
            submit_job(self.head, self.gw, self.job, {"name": self.job, "nodes": NODES_OF_A_JOB})
        self.until("a running job", lambda: self.whole() == "", 30)

    def _state(self, name: str) -> str:
        nodes = self.head.get("/status")["scheduler"]
        return str(nodes.get(name, {}).get("state"))

    @property
    def node_name(self) -> str:
        """The scheduler name of the node to which the stories happen."""
        return str(self.row["names"][-1])

    @property
    def node(self) -> str:
        return str(self.row["nodes"][str(NODES_OF_A_JOB - 1)])

    @property
    def row(self) -> Row:
        return self.gw.jobs.job(self.job) or {}

    def subjects(self) -> tuple[str, ...]:
        return (*self.row.get("nodes", {}).values(), self.job)

    def whole(self) -> str:
        row, status = self.row, self.head.get("/status")
        job = status["jobs"].get(self.job, {})
        if row.get("pending") or row.get("unresolved") or row.get("state") != "RUNNING":
            found = {key: row.get(key) for key in ("pending", "unresolved", "state")}
            return f"the job's row says {found}"
        if row.get("resume_phase") in ACTIVE:
            return f"resume {row['resume_number']} is {row['resume_phase']}"
        if job.get("state") != "RUNNING" or len(job["live_ranks"]) != NODES_OF_A_JOB:
            return f"the job is {job.get('state')} with the ranks {job.get('live_ranks')}"
        if job["attempt"] != row["attempt"] or set(job["placement"]) != set(row["nodes"].values()):
            return f"attempt {job['attempt']} on {job['placement']} is not {row['attempt']} on {row['nodes']}"
        for name in row["names"]:
            node = status["scheduler"][name]
            if node["isolated"] or node["node_id"] not in row["nodes"].values():
                return f"{name} is {node}"
        return ""

    def state(self) -> dict[str, Any]:
        row = self.row
        nodes = [self.gw.ledger.node(node) or {} for node in row.get("nodes", {}).values()]
        facts = (
            "node_id",
            "name",
            "session",
            "phase",
            "action",
            "outcome_reason",
            "launch",
            "replacement_id",
            "isolation",
        )
        job = (
            "attempt",
            "state",
            "pending",
            "unresolved",
            "resume_number",
            "resume_phase",
            "resume_outcome_reason",
        )
        return {
            "nodes": [{key: node[key] for key in facts if key in node} for node in nodes],
            "job": {key: row[key] for key in job if key in row},
        }

    # --- a story ---------------------------------------------------------------------------------------

    def play(self, case: Case) -> None:
        story = STORIES[case.story]
        if story.durable:
            # One that is under way would meet what this story plans, and began before it.
            self.until("the job's sync is at rest", lambda: self._sync.get("phase") not in ACTIVE)
        row = self.row
        node = self.node
        before = Before(
            node, int((self.gw.ledger.node(node) or {}).get("session", 0)), int(row.get("resume_number", 0)),
            int(row["attempt"]), time.time(),
        )  # fmt: skip
        about = before.node, self.job
        self.plan(case, *about)
        self._begin(story, before)
        if story.answer:
            self._answer(story, before)
        self.until_over(lambda: self._ended(story, before) and self.befallen(case, *about))
        self.check(story, before)
        if case.fault is None:
            self.redrive(case, before.at, about, lambda: self._picture(before))
            self.check(story, before)

    def _begin(self, story: Story, before: Before) -> None:
        match story.begin:
            case "xid":
                # Its ranks live on: where they die too, the job may be resumed once before the news comes.
                line = {"fault": "kernel-line", "node": before.node, "line": XID_79}
                self.head.post("/inject", line)
            case "replace it":
                self.order("heal_node", node_id=before.node, action="replace")
            case "retire it":
                finding = {**_RETIREMENT, "instance_id": before.node, "time": time.time()}
                finding["starts_at"] = time.time() + RETIRED_SECONDS
                self.gw.bus.put("planaria.sweep", "Planaria Sweep Finding", [finding])
            case "reboot it":
                self.order("heal_node", node_id=before.node, action="reboot")
            case "reset it":
                self.order("heal_node", node_id=before.node, action="reset")
            case "process exit":
                self.head.post("/inject", {"fault": "kill-rank", "node": before.node, "job_id": self.job})
            case "wipe its folder":
                self._wipe()
                self.head.post("/inject", {"fault": "kill-rank", "node": before.node, "job_id": self.job})
            case "save a step":
                wish = {"job_id": self.job, "deadline": f"{time.time() + 60:.0f}"}
                asked = {"document": "planaria-checkpoint-now", "node_ids": [before.node], "parameters": wish}
                self.head.post("/commands/submit", asked)
            case "isolate it":
                self.order(ISOLATE, node_id=before.node)
            case "launch for it":
                self.order(ISOLATE, node_id=before.node)
                self.until("isolated node", lambda: self._phase(before) == "RETIRED")
                self.order(LAUNCH, node_id=before.node)
                self.until("second session", lambda: self._phase(before) != "RETIRED")
            case _:
                raise Wrong(f"the emulator does not know how {story.begin!r} begins")

    def _wipe(self) -> None:
        """Its newest step is in S3, and its folder is empty."""
        folder = JobFolder(self.world.job_folder(self.job)).checkpoints
        here = FileCheckpoints(folder, self.job)
        whole = self.until("a whole step", lambda: newest_first(c for c in here.steps() if c.usable))
        manifest, stored = here.manifest(whole[0]), self.gw.checkpoints(self.job)
        assert self.world.emulator is not None
        s3 = self.world.emulator.client("s3")
        bucket, _, prefix = stored.place(whole[0].name).removeprefix("s3://").partition("/")
        for shard in manifest.shards:
            body = (folder / whole[0].name / shard.name).read_bytes()
            key = f"{prefix}/{shard.name}"
            s3.put_object(Bucket=bucket, Key=key, Body=body, ChecksumAlgorithm="CRC64NVME")
        stored.commit(manifest, whole[0].name)
        shutil.rmtree(folder)
        folder.mkdir()

    def _phase(self, before: Before) -> str:
        row = self.gw.ledger.node(before.node) or {}
        return str(row.get("phase")) if int(row.get("session", 0)) > before.session else ""

    def _answer(self, story: Story, before: Before) -> None:
        self.until("question", lambda: approval.waits(self.gw.ledger.node(before.node) or {}))
        row = self.gw.ledger.node(before.node) or {}
        word = Answer.APPROVED if story.answer == "yes" else Answer.REJECTED
        give(self.gw, incident_id(before.node, int(row["session"])), word, "ada", "campaign")

    # --- its end ---------------------------------------------------------------------------------------

    def _ended(self, story: Story, before: Before) -> bool:
        if story.outcome:
            phase = self._phase(before)
            if not phase or phase in ACTIVE:
                return False
            if phase != story.outcome and not (story.begin == "launch for it" and phase == "RETIRED"):
                raise Wrong(f"the incident ended {phase} instead of {story.outcome}; {self.told()}")
            if phase != story.outcome:
                return False
        row = self.row
        if row.get("pending"):
            return False
        if story.resume:
            new = int(row.get("resume_number", 0)) > before.resume
            phase = str(row.get("resume_phase")) if new else ""
            if phase == "ESCALATED" != story.resume:
                raise Wrong(f"the resume ended {phase}; {self.told()}")
            return phase == story.resume
        if story.durable and not self._newly_safe(before):
            return False
        return row.get("resume_phase") not in ACTIVE

    def _newly_safe(self, before: Before) -> bool:
        """A step that was saved since is durable, and its sync is over."""
        new = [row for row in self._steps() if float(row.get("saved_at") or 0.0) > before.at]
        return (
            bool(new) and all(row["state"] == "durable" for row in new) and self._sync.get("phase") == "DONE"
        )

    @property
    def _sync(self) -> Row:
        """The claim of the job's sync."""
        return sync_claims.read(self.gw.table, self.job) or {}

    def _steps(self) -> list[Row]:
        return CheckpointLedger(self.gw.table).steps(self.job)

    def check(self, story: Story, before: Before) -> None:
        """One outcome, one resume, at most one replacement, no job lost, nothing isolated but on purpose."""
        findings = Findings()
        expect = findings.expect
        expected = ["RETIRED"] * (story.begin == "launch for it") + [story.outcome] * bool(story.outcome)
        heads = [row for row in self.gw.ledger.incidents() if row.get("node_id") == before.node]
        heads = sorted(
            (r for r in heads if int(r["session"]) > before.session), key=lambda r: int(r["session"])
        )
        expect("incidents of the node", [row.get("outcome") for row in heads], expected)

        rows = [row for row in self.gw.ledger.nodes() if row.get("replaces") == before.node]
        launched = sorted(row["node_id"] for row in rows if float(row["launched_at"]) > before.at - 1)
        present = {i.node_id: i for i in self.gw.fleet.cluster()}
        ours = {n for n, i in present.items() if i.tags.get(tags.REPLACES) == before.node}
        alive = sorted(n for n in ours if present[n].state == "running")
        expect("instances launched", len(launched), story.launched)
        expect("launched instances that are in no row", sorted(ours - set(launched)), [])
        expect("replacements that run", len(alive), int(story.served))
        gone = story.served and not story.old_stays
        old = present[before.node].state if before.node in present else "terminated"
        expect("the old instance", old, "terminated" if gone else "running")

        row, status = self.row, self.head.get("/status")
        node = status["scheduler"][self.node_name]
        expect("isolated by us", bool(node["isolated"]), story.isolated)
        expect(
            "the instance of the name", node["node_id"], alive[0] if story.served and alive else before.node
        )
        expect("unresolved nodes of the job", list(row["unresolved"]), [before.node] * story.isolated)
        attempts = self.world.job_folder(self.job) / "attempts"
        begun = sorted(int(path.name) for path in attempts.iterdir() if int(path.name) > before.attempt)
        expect("attempts of the job that were started", len(begun), int(story.resume == "HEALED"))
        if not story.isolated and story.resume != "ESCALATED":
            expect("the place", self.whole(), "")
        if story.durable:
            new = [row for row in self._steps() if float(row.get("saved_at") or 0.0) > before.at]
            store = self.gw.checkpoints(self.job)
            there = {copy.place: str(store.verify(copy).state) for copy in store.steps()}
            expect("new durable steps", len(new), story.durable)
            expect("what S3 proves", [there.get(str(row["place"])) for row in new], ["durable"] * len(new))
        findings.judge(self)

    def _picture(self, before: Before) -> dict[str, Any]:
        """What a redrive could change."""
        present = {i.node_id: i.state for i in self.gw.fleet.cluster() if i.state == "running"}
        about = {before.node, self.node}
        status = self.head.get("/status")
        return {
            "instances": sorted(
                i.node_id
                for i in self.gw.fleet.cluster()
                if i.state == "running" and (i.node_id in about or i.tags.get(tags.REPLACES) == before.node)
            ),
            "nodes": [
                lasting(self.gw.ledger.node(node) or {}) for node in sorted(about & set(present) | about)
            ],
            "incidents": [row for row in self.gw.ledger.incidents() if row.get("node_id") in about],
            "job": lasting(self.row),
            "scheduler": {k: status["scheduler"][self.node_name][k] for k in ("node_id", "isolated")},
            "attempt": status["jobs"][self.job]["attempt"],
            "steps": self._steps(),
        }

    # --- afterwards ------------------------------------------------------------------------------------

    def rescue(self) -> bool:
        try:
            self.forget_plans(*self.subjects())
            for execution in self.running():
                self.until(f"end of {execution}", lambda e=execution: e not in self.running(), 60)  # type: ignore[misc]
            for node in self.row["nodes"].values():
                if (self.gw.ledger.node(node) or {}).get("phase") == "ESCALATED":
                    self.order("heal_node", node_id=node, action="replace")
            self.until("a whole place", lambda: self.whole() == "", 60)
        except Exception:  # noqa: BLE001  then it is lost
            return False
        return True

    def repair(self, case: Case) -> None:
        """What a person would order after such an end, by Planaria; the place is whole again."""
        story = STORIES[case.story]
        old = self.node
        self.forget_plans(old, self.job)
        if story.isolated and story.begin in ("isolate it", "launch for it"):
            self.order(LAUNCH, node_id=old)
        elif story.isolated:
            self.order("heal_node", node_id=old, action="replace")
        elif story.resume == "ESCALATED":
            self.order("resume_job", job_id=self.job)
        self.until("a whole place after the repair", lambda: self.whole() == "", 60)
        self.until("end of the repair", lambda: not self.running(), 60)
        rows = (r for r in self.gw.ledger.nodes() if r["node_id"] not in self.row["nodes"].values())
        for row in rows:
            if row.get("name") in self.row["names"] and not row.get("gone"):
                with contextlib.suppress(PlanariaError):
                    self.gw.fleet.terminate(row["node_id"])
