"""Runs cases, several at a time, each in a place of its own, in one sandbox."""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from planaria.core.errors import PlanariaError
from tests.e2e.campaign.places import Case, Place, Wrong
from tests.e2e.campaign.pools import Pool, node_group
from tests.e2e.campaign.slots import Slot
from tests.e2e.campaign.world import CampaignWorld
from tests.e2e.fault_cases import STORIES

AT_ONCE = 8
SETTLE_SECONDS = 120.0
STAGGER_SECONDS = 1.0
SWEEP_SECONDS = 6.0
"""A minute of the campaign's time: sweep runs as often, not only when the emulator's rule fires."""


def kind(case: Case) -> type[Place]:
    """Where its story happens."""
    return Pool if STORIES[case.story].spares else Slot


def cluster(approve: bool, pools: int, syncs: bool = False) -> dict[str, Any]:
    """A cluster file that never gets tired: no limit of this campaign is one of the policy's. pools: node
    groups with a warm pool. syncs: checkpoints are copied to S3."""
    policy = {
        "mode": "approve" if approve else "act",
        "breaker": {"max_removals": 1000, "max_share": 1.0, "window_minutes": 1},
        "boot_timeout_minutes": 5,
        "drain_deadline_minutes": 2,
        "job_settle_seconds": 1,
        "max_attempts": 5,
        "max_resumes": 1000,
        "resume_window_minutes": 60,
        "approval_timeout_minutes": 60,
        "gpu_reset": True,
        "offender_incidents": 1000,
        "max_replacements": 1000,
        "boot_grace_minutes": 0.01,
        "cooldown_minutes": 1,
        "spare_check_minutes": 40_000,
    }
    launch = {
        "image": "ami-00000000000000001",
        "subnets": ["subnet-00000000000000001"],
        "security_groups": ["sg-00000000000000001"],
    }
    offerings = [{"instance_type": "p5.48xlarge", "capacity": "on-demand"}]
    common = {"launch": launch, "offerings": offerings}
    groups: list[dict[str, Any]] = [{"name": "workers", "size": 64, **common}]
    groups += [{"name": node_group(each), "size": 1, "spares": 1, **common} for each in range(1, pools + 1)]
    name = "ask" if approve else "sync" if syncs else "camp"
    found = {
        "name": name, "region": "us-east-1", "scheduler": "process", "policy": policy, "node_groups": groups,
    }  # fmt: skip
    return {**found, "checkpoints": {"sync_minutes": 2}} if syncs else found


class Campaign:
    """results: case -> "" or what was wrong; seconds: case -> how long it took."""

    def __init__(
        self,
        folder: Path,
        approve: bool,
        cases: Iterable[Case],
        told: Callable[[str], None] = lambda line: None,
        at_once: int = AT_ONCE,
    ) -> None:
        self._cases = tuple(cases)
        self._number = min(at_once, len(self._cases))
        self._kinds = {kind(case) for case in self._cases}
        pools = self._number if Pool in self._kinds else 0
        syncs = any(STORIES[case.story].durable for case in self._cases)
        self.world = CampaignWorld(folder, cluster(approve, pools, syncs))
        self.results: dict[Case, str] = {}
        self.seconds: dict[Case, float] = {}
        self.after: list[str] = []
        self._told = told
        self._counting = threading.Lock()
        self._ending = threading.Event()

    def run(self) -> None:
        if not self._cases:
            return
        waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in self._cases:
            waiting.put(case)
        with self.world:
            self._told("deployed")
            self.world.warm()
            self._told("warm")
            # A story frees nodes for a moment: no job may look for some then.
            settled = threading.Barrier(self._number, timeout=SETTLE_SECONDS)
            workers = [
                threading.Thread(target=self._work, args=(each, waiting, settled))
                for each in range(1, self._number + 1)
            ]
            clock = threading.Thread(target=self._sweep)
            for thread in (clock, *workers):
                thread.start()
            for worker in workers:
                worker.join()
            self._ending.set()
            clock.join()
            self.after = self._left_over()
            self._told("over")

    def _work(self, number: int, waiting: "queue.SimpleQueue[Case]", settled: threading.Barrier) -> None:
        gw = self.world.gateways()
        places = {each: each(self.world, gw, number) for each in self._kinds}
        try:
            for place in places.values():
                place.settle_in()
            settled.wait()
            time.sleep((number - 1) * STAGGER_SECONDS)
        except Exception as error:  # noqa: BLE001
            settled.abort()
            self._told(f"place {number}: {error}")
            return
        while True:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                return
            place, began = places[kind(case)], time.monotonic()
            self.results[case] = self._try(place, case)
            self.seconds[case] = time.monotonic() - began
            with self._counting:
                done = f"{len(self.results)}/{len(self._cases)} {self.seconds[case]:5.1f} s"
                self._told(f"{done} {case}: {self.results[case] or 'well'}")
            if self.results[case] and not place.rescue():
                self._told(f"place {number} is lost: {place.told()}")
                return

    @staticmethod
    def _try(place: Place, case: Case) -> str:
        """ "" or what was wrong."""
        try:
            place.play(case)
            place.repair(case)
        except Wrong as wrong:
            return str(wrong)
        except Exception:  # noqa: BLE001  one case must not end the others
            return traceback.format_exc()
        return ""

    def _sweep(self) -> None:
        assert self.world.emulator is not None
        client = self.world.emulator.client("lambda")
        name = f"planaria-{self.world.file.name}-sweep"
        while not self._ending.wait(SWEEP_SECONDS):
            try:
                client.invoke(FunctionName=name, InvocationType="RequestResponse", Payload=b"{}")
            except Exception as error:  # noqa: BLE001  the next one may do better
                self._told(f"sweep: {error}")

    def _left_over(self) -> list[str]:
        """What the campaign as a whole must not leave: open incidents, dead letters, running executions."""
        assert self.world.emulator is not None
        gw, found = self.world.gateways(), []
        if any(self.results.values()):
            return []  # a case that went wrong has left its own behind
        try:
            found += [r["incident_id"] for r in gw.ledger.incidents() if "outcome" not in r]
        except PlanariaError as error:
            found.append(str(error))
        sqs = self.world.emulator.client("sqs")
        for lane in ("urgent-dlq", "normal-dlq"):
            url = sqs.get_queue_url(QueueName=f"planaria-{self.world.file.name}-{lane}")["QueueUrl"]
            wanted = ["ApproximateNumberOfMessages"]
            depth = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=wanted)["Attributes"]
            found += [f"{lane}: {depth[wanted[0]]} messages"] * (int(depth[wanted[0]]) > 0)
        return found
