"""What the adapter reads in the ledger: which instance has a name, whether EC2 has ended it, and why a node
is isolated.

Kubernetes knows no names of ours but by the label that a Join writes, and a replacement always has a new Node
name there. Until the first Join the ledger alone says which instance stands behind a name.
"""

from collections.abc import Mapping

from planaria.core.ladder import HEALTH
from planaria.core.ledger import Ledger
from planaria.core.plans import is_gone
from planaria.core.table import Row
from planaria.schedulers.eks.node_patches import Fault

PREFIX = "planaria:"

TYPES = {"REPLACE": "NvidiaErrorTerminate", "DRAIN": "NvidiaErrorTerminate"}
"""HyperPod's two words for a fault of a GPU, by what is done about it; any repair is the other one."""

OF_GPUS = ("xid", "sxid", "fallen_off_bus")


class LedgerWords:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def instances(self) -> Mapping[str, str]:
        """{scheduler name: instance id}. A replacement bears its node's name in the ledger before it has
        joined: until then the name is the old instance's."""
        return {name: str(row["node_id"]) for name, row in self._rows().items()}

    def gone(self, name: str) -> bool:
        """EC2 has ended the instance that has this name (or this id)."""
        row = self._rows().get(name) or self._ledger.node(name)
        return row is not None and is_gone(row)

    def _rows(self) -> dict[str, Row]:
        found: dict[str, Row] = {}
        for row in self._ledger.nodes():
            name = row.get("name")
            if not name or row.get("replaced_by"):
                continue
            if name not in found or _has_it(row) > _has_it(found[name]):
                found[name] = row
        return found

    def fault(self, reason: str) -> Fault:
        """The incident behind our reason, in HyperPod's words; general ones where there is none."""
        if not reason.startswith(PREFIX):
            return Fault(message=reason)
        row, _ = self._ledger.incident(reason.removeprefix(PREFIX))
        if row is None:
            return Fault(message=reason)
        told, action = row.get("fault") or {}, str(row.get("action") or "")
        kind, code = str(told.get("kind") or ""), str(told.get("code") or "")
        gpu = kind in OF_GPUS
        return Fault(
            HEALTH.get(action, "Unschedulable"),
            TYPES.get(action, "NvidiaErrorReboot") if gpu else f"Planaria_{kind or 'order'}",
            "XidHardwareFailure" if gpu else (code or "Isolated"),
            f"{reason}: {kind} {code} {row.get('reason') or ''}".strip(),
        )


def _has_it(row: Row) -> tuple[bool, float]:
    return bool(row.get("admitted_at")) or not row.get("replaces"), float(row.get("admitted_at") or 0.0)
