"""Sweep's part of Slurm's topology.conf: where the cluster file asks for it (`slurm: {topology: tree}`),
the head node is told where the nodes are, whenever that has changed, and once an hour anyway.

One row, `SLURM`, `TOPOLOGY`: `installed` and `asked` (digests of what was told), `ticket` and `asked_at`
of the command, `why` it did not do. The verb on the head node (planaria/slurm/topology.py) writes the
file, has slurmctld read it, and takes it back where slurmctld does not.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from lambdas.boundary import logger
from lambdas.inventory import each
from planaria.core.errors import PermanentError
from planaria.core.plans import is_gone
from planaria.core.policy import Mode
from planaria.core.ports import AnswerState
from planaria.core.table import Condition, Row, equals, missing
from planaria.core.topology import Path, of_row
from planaria.core.topology_conf import packed
from planaria.wiring import Gateways

DOCUMENT = "planaria-slurm-topology"
KEY = ("SLURM", "TOPOLOGY")

AGAIN_SECONDS = 3600.0
"""Nodes that come into slurm.conf later need a switch too; the head node knows them, the ledger does not."""

REFUSED_SECONDS = 600.0
SILENT_SECONDS = 300.0

MOST_CHARACTERS = 48_000
"""An SSM document with its parameters may have 64 KB; 4,096 nodes take about 20 KB."""

REASON_LENGTH = 300


def keep(gw: Gateways, nodes: list[Row]) -> int:
    """nodes: every node's row. Returns whether the head node was asked."""
    return each([{"pk": KEY[0]}], "topology.conf of", lambda _: _keep(gw, nodes))


def _keep(gw: Gateways, nodes: list[Row]) -> bool:
    slurm = gw.cluster.slurm
    if slurm is None or slurm.topology != "tree" or gw.cluster.policy.mode is Mode.OBSERVE:
        return False
    row, now = gw.table.get(*KEY) or {}, gw.clock.now()
    if row.get("ticket"):
        heard = _heard(gw, row, slurm.head_node)
        if heard is None:
            return False
        row = heard
    text = packed(places(nodes))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    since = now - float(row.get("asked_at") or 0.0)
    if digest == row.get("asked") and since < (REFUSED_SECONDS if row.get("why") else AGAIN_SECONDS):
        return False
    if len(text) > MOST_CHARACTERS:
        raise PermanentError(
            f"the places of {len(nodes)} nodes take {len(text)} characters: too many for SSM"
        )
    ticket = gw.commands.submit(DOCUMENT, [slurm.head_node], {"Paths": text})
    gw.table.write(*KEY, sets={"asked": digest, "ticket": ticket, "asked_at": now}, when=_as_seen(row))
    return True


def _heard(gw: Gateways, row: Row, head: str) -> Row | None:
    """The row once the head node has answered, or will not any more; None while it is waited for."""
    answer = gw.commands.poll(row["ticket"])
    if answer.state is AnswerState.PENDING and gw.clock.now() - float(row["asked_at"]) < SILENT_SECONDS:
        return None
    why = "the head node did not answer"
    if answer.state is AnswerState.DONE:
        why = _why_not(answer.value.get(head))
    if why:
        logger.warning("sweep: topology.conf is not as it should be", extra={"reason": why})
    sets: dict[Any, Any] = {"why": why[:REASON_LENGTH]}
    if not why:
        sets["installed"] = row["asked"]
    return gw.table.write(*KEY, sets=sets, removes=("ticket",), when=equals("ticket", row["ticket"]))


def _why_not(entry: object) -> str:
    """Why slurmctld does not work by the file, "" when it does."""
    output = entry.get("output") if isinstance(entry, Mapping) else None
    said = output if isinstance(output, Mapping) else {}
    value = said.get("value")
    if isinstance(value, Mapping) and value.get("installed") is True:
        return ""
    reason = value.get("reason") if isinstance(value, Mapping) else said.get("error") or said.get("reason")
    return str(reason or "the head node's answer cannot be read")


def _as_seen(row: Row) -> Condition:
    """No other sweep has asked meanwhile."""
    return equals("asked_at", row["asked_at"]) if "asked_at" in row else missing("asked_at")


def places(nodes: list[Row]) -> dict[str, Path]:
    """Slurm's name -> where the instance is that bears it; a replacement's from its admission on, or before
    where no other instance has the name any more."""
    found: dict[str, tuple[tuple[bool, float], Path]] = {}
    for row in nodes:
        name = row.get("name")
        if not name or is_gone(row) or row.get("replaced_by"):
            continue
        placed = not row.get("replaces") or bool(row.get("admitted_at"))
        key = placed, float(row.get("launched_at") or 0.0)
        if name not in found or key > found[name][0]:
            found[name] = key, of_row(row)
    return {name: path for name, (_, path) in sorted(found.items())}
