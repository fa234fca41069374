"""Slurm as the scheduler of the sandbox: its daemons, who has which name, and its head node's documents.

An instance boots as slurmd of its name. On AWS the replacement's slurmd has an address of its own from the
start; here a name has one port, so the replacement's comes up when it takes the name over (Join).
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planaria.memory.cluster_state import ClusterState, Node
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.local_commands import LocalCommands
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings

PREFIX = "planaria-slurm-"
JOIN = "planaria-slurm-join"
ENDING = ("planaria-slurm-stop",)
"""Documents that end the ranks of a job on purpose."""

logger = logging.getLogger(__name__)


def folder_of(sandbox: Path) -> Path:
    """Where the Slurm of a sandbox lives."""
    return sandbox / "slurm"


class SlurmSide:
    """names: every node that the cluster may have. `state` mirrors who has which name, under `lock`."""

    def __init__(
        self, folder: Path, names: Sequence[str], state: ClusterState, lock: threading.RLock
    ) -> None:
        self.slurm = SlurmCluster(SlurmSettings(folder_of(folder), (), tuple(names)))
        self._state, self._lock = state, lock
        self._commands = LocalCommands(self.slurm.environment)
        self._numbers: dict[str, int] = {}

    def start(self) -> None:
        """slurmctld, with no node up. Raises SandboxError where there is no Slurm."""
        self.slurm.start()

    def stop(self) -> None:
        self._commands.close()
        self.slurm.stop()

    # --- instances -------------------------------------------------------------------------------

    def holder_of(self, name: str) -> str:
        with self._lock:
            node = self._state.nodes.get(name)
            return node.node_id if node else ""

    def came_up(self, name: str, node_id: str) -> None:
        """A first node of its name; a replacement waits for its Join."""
        if self.holder_of(name) == node_id:
            self.slurm.boot(name)

    def went_down(self, node_id: str) -> None:
        """All processes of the instance end, its ranks too; a name that is another's by now stays up."""
        with self._lock:
            names = [node.name for node in self._state.nodes.values() if node.node_id == node_id]
        for name in names:
            self.slurm.kill_node(name)

    def states(self) -> dict[str, str]:
        """name -> Slurm's own word for the node's state; empty while slurmctld does not answer."""
        try:
            lines = self.slurm.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        except SandboxError:
            return {}
        return {name: state for name, _, state in (line.strip().partition(" ") for line in lines)}

    def drain(self, name: str, reason: str) -> None:
        """Somebody other than Planaria takes the node out. Raises SandboxError where Slurm refuses."""
        self.slurm.run("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}")

    # --- documents of the head node --------------------------------------------------------------

    def submit(self, document: str, node_ids: Sequence[str], parameters: Mapping[str, str]) -> str:
        """Raises InvalidInput for parameters that the document does not take."""
        given = dict(parameters)
        if document == JOIN:
            given["Address"] = self._take_over(given.get("Name", ""), given.get("NodeId", ""))
        return self._commands.submit(document, node_ids, given)

    def poll(self, ticket: str) -> dict[str, Any]:
        answer = self._commands.poll(ticket)
        return {"state": str(answer.state), "value": answer.value, "reason": answer.reason}

    def owns(self, ticket: str) -> bool:
        return ticket.startswith("local-")

    def _take_over(self, name: str, node_id: str) -> str:
        """The new instance's slurmd takes the name's port, unless a job still runs there; the verb says so.

        -> the loopback address that stands for the instance's own, which leads nowhere on this machine.
        """
        number = self._numbers.setdefault(node_id, len(self._numbers))
        address = f"127.0.{1 + number // 250}.{2 + number % 250}"
        if self.holder_of(name) == node_id and self.slurm.runs(name):
            return address
        try:
            busy = self.slurm.run("squeue", "--noheader", "--nodelist", name, "--format=%A").split()
            if not busy:
                self.slurm.boot(name)
                with self._lock:
                    self._state.nodes[name] = Node(name, node_id, address)
        except SandboxError as error:
            logger.warning("%s of %s: %s", name, node_id, error)
        return address
