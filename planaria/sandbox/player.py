"""Plays what the emulator leaves out: EC2's instances that boot, run and die, and AWS's events about them.

The emulator's EC2 keeps records only. The player reads them and keeps one node process group per running
instance of the cluster. Reboots leave no trace in the records; the emulator's CloudTrail has them. Its Step
Functions send no status-change events; the player asks for executions that failed.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from botocore.exceptions import ClientError

from planaria.core import tags
from planaria.sandbox.gameday_events import EXECUTION_STATUS, SPOT_WARNING, STATE_CHANGE, GameDayEvents
from planaria.sandbox.job_folder import read_json, write_json
from planaria.sandbox.node_process import NodeProcess, NodeStage

POLL_SECONDS = 0.1
TRAIL_SECONDS = 0.25
EXECUTION_SECONDS = 1.0
SESSION_SECONDS = 43200
ENDED = ("FAILED", "TIMED_OUT", "ABORTED")
_BACK_SECONDS = 60.0  # how far back an execution may have failed to be news to a head that has just started

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlayerConfig:
    """boot_seconds: from the launch or reboot to the agent's Node Ready. notice_seconds: from a spot notice
    to the end. node_role: ARN of the role that the agents get credentials of; without it they use the
    emulator's root keys. environment: AWS endpoint, region and root keys for child processes."""

    cluster: str
    bus: str
    folder: Path
    boot_seconds: float = 3.0
    notice_seconds: float = 120.0
    poll_seconds: float = POLL_SECONDS
    node_role: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class World(Protocol):
    """What the player tells the scheduler; the head implements it."""

    def node_up(self, node: NodeProcess, waits: bool) -> None: ...
    def node_down(self, node: NodeProcess) -> None: ...


class Player:
    """client(service) makes a boto3 client of the emulator. One thread; `refresh`, `spot` and `node` may be
    called from others."""

    def __init__(self, config: PlayerConfig, client: Callable[[str], Any], world: World) -> None:
        self._config = config
        self._world = world
        self._ec2 = client("ec2")
        self._trail = client("cloudtrail")
        self._workflows = client("stepfunctions")
        self._sts = client("sts")
        self.events = GameDayEvents(client("events"), config.bus)
        self._record = config.folder / "player.json"
        self._lock = threading.RLock()
        self._ending = threading.Event()
        self._nodes: dict[str, NodeProcess] = {}
        self._tags: dict[str, dict[str, str]] = {}
        saved = read_json(self._record) or {}
        self._states: dict[str, str] = saved.get("states", {})
        self._terminations: dict[str, float] = saved.get("terminations", {})
        self._started_at = time.time()
        self._seen_reboots: dict[str, float] = {}
        self._seen_executions: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)

    def start(self) -> None:
        self.events.start()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and every node."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        with self._lock:
            for node in self._nodes.values():
                node.kill()
        self.events.stop()

    # --- for the head ----------------------------------------------------------------------------

    def nodes(self) -> dict[str, NodeProcess]:
        with self._lock:
            return dict(self._nodes)

    def refresh(self) -> None:
        """Take notice at once of agents that have become ready or died."""
        with self._lock:
            for node_id, node in self._nodes.items():
                before = node.stage
                after = node.refresh()
                if after is before:
                    continue
                if after is NodeStage.UP:
                    # Only a first node of its name comes in by booting; a spare has no name yet.
                    waits = tags.REPLACES in self._tags[node_id] or tags.NAME not in self._tags[node_id]
                    self._world.node_up(node, waits)
                else:
                    logger.warning("node %s (%s) died", node.name, node_id)
                    self._world.node_down(node)

    def kill(self, node_id: str) -> None:
        """All processes of the node end, the instance stays `running`."""
        with self._lock:
            node = self._nodes[node_id]
            node.kill()
            self._world.node_down(node)

    def spot(self, node_id: str) -> float:
        """EC2 takes this spot instance back. -> epoch seconds at which it will terminate it."""
        deadline = time.time() + self._config.notice_seconds
        when = datetime.fromtimestamp(deadline, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._lock:
            self._nodes[node_id].set_metadata("spot/instance-action", {"action": "terminate", "time": when})
            self._terminations[node_id] = deadline
            self._save()
        detail = {"instance-id": node_id, "instance-action": "terminate"}
        self.events.put(SPOT_WARNING, detail, [_arn(node_id)])
        return deadline

    def document(self) -> dict[str, Any]:
        """For `sandbox status`."""
        with self._lock:
            return {
                "nodes": {node_id: node.document() for node_id, node in self._nodes.items()},
                "instances": dict(self._states),
                "terminations": dict(self._terminations),
                "events_sent": self.events.sent,
            }

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        duties: list[tuple[float, Callable[[], None]]] = [
            (self._config.poll_seconds, self.poll_instances),
            (TRAIL_SECONDS, self.poll_reboots),
            (EXECUTION_SECONDS, self.poll_executions),
        ]
        due = [0.0] * len(duties)
        complained: dict[int, str] = {}
        while not self._ending.is_set():
            for number, (seconds, duty) in enumerate(duties):
                if time.monotonic() < due[number]:
                    continue
                due[number] = time.monotonic() + seconds
                try:
                    duty()
                    complained.pop(number, None)
                except Exception as error:  # noqa: BLE001  the emulator may be down or not deployed yet: try again
                    if complained.get(number) != str(error):
                        logger.warning("%s: %s", duty.__name__, error)
                        complained[number] = str(error)
                    due[number] += 0.5
            self._ending.wait(max(0.005, min(due) - time.monotonic()))

    def poll_instances(self) -> None:
        """Make the process groups what EC2's records say."""
        now = time.time()
        for node_id in [n for n, at in self._terminations.items() if at <= now]:
            with contextlib.suppress(ClientError):  # somebody was faster, and the instance is forgotten
                self._ec2.terminate_instances(InstanceIds=[node_id])
            with self._lock:
                self._terminations.pop(node_id, None)
                self._save()
        own = [{"Name": f"tag:{tags.CLUSTER}", "Values": [self._config.cluster]}]
        found = self._ec2.describe_instances(Filters=own)
        present = {i["InstanceId"]: i for group in found["Reservations"] for i in group["Instances"]}
        with self._lock:
            for node_id, instance in present.items():
                self._follow(node_id, str(instance["State"]["Name"]), instance)
            for node_id in [n for n in self._states if n not in present]:
                if self._states[node_id] == "running":
                    self._follow(node_id, "terminated", {})
                else:
                    del self._states[node_id]
        self.refresh()

    def poll_reboots(self) -> None:
        """Boot anew what somebody asked EC2 to reboot."""
        now = time.time()
        self._seen_reboots = {e: at for e, at in self._seen_reboots.items() if at > now - 60}
        answer = self._trail.lookup_events(
            LookupAttributes=[{"AttributeKey": "EventSource", "AttributeValue": "ec2.amazonaws.com"}],
            StartTime=max(self._started_at, now - 10),
            MaxResults=50,
        )
        for event in reversed(answer["Events"]):
            # A query-protocol call has no name of its own there, only its parameters.
            if "RebootInstances" not in event["CloudTrailEvent"] or event["EventId"] in self._seen_reboots:
                continue
            self._seen_reboots[event["EventId"]] = now
            if event["EventTime"].timestamp() < self._started_at:
                continue
            asked = json.loads(event["CloudTrailEvent"]).get("requestParameters") or {}
            if asked.get("Action") == "RebootInstances":
                for key, node_id in sorted(asked.items()):
                    if key.startswith("InstanceId"):
                        self._reboot(str(node_id))

    def poll_executions(self) -> None:
        """Say which executions of our machines failed, timed out or were stopped."""
        prefix = f"planaria-{self._config.cluster}-"
        for status in ENDED:
            # Without a machine's ARN the emulator lists those of all machines.
            answer = self._workflows.list_executions(statusFilter=status, maxResults=100)
            for execution in reversed(answer["executions"]):
                arn = execution["executionArn"]
                machine = execution["stateMachineArn"].rpartition(":")[2]
                if arn in self._seen_executions or not machine.startswith(prefix):
                    continue
                self._seen_executions.add(arn)
                stopped = execution.get("stopDate")
                if stopped is not None and stopped.timestamp() < self._started_at - _BACK_SECONDS:
                    continue
                detail = {
                    "executionArn": arn,
                    "stateMachineArn": execution["stateMachineArn"],
                    "name": execution["name"],
                    "status": execution["status"],
                    "startDate": int(execution["startDate"].timestamp() * 1000),
                    "stopDate": int((stopped.timestamp() if stopped else time.time()) * 1000),
                }
                self.events.put(EXECUTION_STATUS, detail, [arn])

    # --- one instance ----------------------------------------------------------------------------

    def _follow(self, node_id: str, state: str, instance: Mapping[str, Any]) -> None:
        before = self._states.get(node_id)
        if state in ("pending", "running"):
            if node_id not in self._nodes or before not in ("pending", "running"):
                self._launch(node_id, instance)
            if before not in ("pending", "running"):
                self._say_state(node_id, "pending", "running")
            state = "running"
        elif before is None and _launched_at(instance) >= int(self._started_at):
            self._say_state(node_id, "pending", "running", "shutting-down", "terminated")
        elif before == "running":
            if node_id in self._nodes:
                self.kill(node_id)
            self._terminations.pop(node_id, None)
            if "stop" in state:
                self._say_state(node_id, "stopping", "stopped")
            else:
                self._say_state(node_id, "shutting-down", "terminated")
                self._nodes.pop(node_id, None)
        if state != before:
            self._states[node_id] = state
            self._save()

    def _launch(self, node_id: str, instance: Mapping[str, Any]) -> None:
        self._tags[node_id] = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
        name = self._tags[node_id].get(tags.NAME, "")
        folder = self._config.folder / "nodes" / node_id
        jobs = self._config.folder / "jobs"
        node = NodeProcess(folder, jobs, node_id, name, instance.get("PrivateIpAddress", ""))
        self._boot(node)
        self._nodes[node_id] = node

    def _reboot(self, node_id: str) -> None:
        with self._lock:
            node = self._nodes.get(node_id)
            if node is None:
                return
            logger.info("node %s (%s) reboots", node.name, node_id)
            node.kill()
            self._world.node_down(node)
            self._boot(node)

    def _boot(self, node: NodeProcess) -> None:
        ready_at = time.time() + self._config.boot_seconds
        environment, source = self._identity(node.instance_id)
        node.boot(ready_at, self._config.bus, source, environment)

    def _identity(self, node_id: str) -> tuple[dict[str, str], str]:
        """(environment, event source) of a node, with credentials as an instance profile gives them."""
        environment = dict(self._config.environment)
        if not self._config.node_role:
            return environment, f"planaria.node/sandbox:{node_id}"
        answer = self._sts.assume_role(
            RoleArn=self._config.node_role, RoleSessionName=node_id, DurationSeconds=SESSION_SECONDS
        )
        given = answer["Credentials"]
        environment |= {
            "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
            "AWS_SESSION_TOKEN": given["SessionToken"],
        }
        return environment, f"planaria.node/{answer['AssumedRoleUser']['AssumedRoleId']}"

    def _say_state(self, node_id: str, *states: str) -> None:
        for state in states:
            self.events.put(STATE_CHANGE, {"instance-id": node_id, "state": state}, [_arn(node_id)])

    def _save(self) -> None:
        write_json(self._record, {"states": self._states, "terminations": self._terminations})


def _launched_at(instance: Mapping[str, Any]) -> float:
    launched = instance.get("LaunchTime")
    return float(launched.timestamp()) if launched else 0.0


def _arn(node_id: str) -> str:
    return f"arn:aws:ec2:us-east-1:000000000000:instance/{node_id}"
