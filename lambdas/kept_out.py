"""Nodes that Slurm keeps out of work by its own words ("Kill task failed", "Prolog error", fewer devices than
configured ...): a sign of a fault, not an operator's hold, and nobody else tells of it.

Slurm is asked about all its nodes at once, in every fifth sweep, and no sweep waits for the answer: the
ticket is carried to the next one in row `WATCH`, `NODES`. What is found goes on Planaria's bus, once for each
node, reason and time of the reason, which stand on the node's row as `kept_out`. Where Slurm's own words are
gone, and no act of ours has written over them, their source reports the node well.
"""

from collections.abc import Mapping
from typing import Any

from lambdas import holding, registering
from lambdas.boundary import logger
from lambdas.inventory import FINDING, FINDINGS, SOURCE, each
from planaria.core.catalog import Proof, look_up
from planaria.core.fault import Action
from planaria.core.incident import ACTIVE
from planaria.core.node import NodeView
from planaria.core.plans import is_gone
from planaria.core.ports import AnswerState
from planaria.core.scheduling import NodeQuery
from planaria.core.signal import Kind
from planaria.core.table import Row, equals, missing
from planaria.wiring import Gateways

KEY = ("WATCH", "NODES")

AGAIN_SECONDS = 270.0
"""Sweeps come a minute apart: every fifth asks."""

OUT_SECONDS = 300.0
"""A question that has no answer by then never gets one."""

MAIL = "kept_out"
MOST_NAMED = 20

Finding = dict[str, Any]


def look(gw: Gateways, nodes: list[Row]) -> int:
    """The number of findings. nodes: every node's row."""
    told: list[int] = []
    each([{"pk": KEY[0]}], "Slurm's own words about", lambda _: told.append(_look(gw, nodes)))
    return sum(told)


def _look(gw: Gateways, nodes: list[Row]) -> int:
    if gw.cluster.scheduler != "slurm":
        return 0
    row, now = gw.table.get(*KEY) or {}, gw.clock.now()
    if not row.get("ticket"):
        if now - float(row.get("asked_at") or 0.0) < AGAIN_SECONDS:
            return 0
        ticket = gw.scheduler.submit(NodeQuery(()))
        as_seen = equals("asked_at", row["asked_at"]) if "asked_at" in row else missing("asked_at")
        row = gw.table.write(*KEY, sets={"ticket": ticket, "asked_at": now}, when=as_seen)
    answer = gw.scheduler.poll(str(row["ticket"]))
    asked_at = float(row["asked_at"])
    if answer.state is AnswerState.PENDING and now - asked_at < OUT_SECONDS:
        return 0
    found = 0
    if answer.state is AnswerState.DONE:
        found = _tell(gw, nodes, answer.value, asked_at)
    else:
        reason = answer.reason or "it did not answer"
        logger.warning("sweep: Slurm does not say which nodes it keeps out", extra={"reason": reason})
    gw.table.write(*KEY, removes=("ticket",), when=equals("ticket", row["ticket"]))
    return found


def _tell(gw: Gateways, nodes: list[Row], told: Mapping[str, Any], asked_at: float) -> int:
    """asked_at: what Slurm said is true of no later moment, so that nothing that was done to a node since is
    taken for its cause."""
    rows = {str(row["node_id"]): row for row in nodes}
    behind = dict(zip(told, registering.instances(gw, told, nodes), strict=True))
    there: dict[str, Row] = {}
    news: list[Row] = []
    findings: list[Finding] = []
    for name, entry in told.items():
        row = rows.get(str(entry.get("node_id") or behind[name]))
        if row is None or is_gone(row) or row.get("isolation"):
            continue  # what Slurm writes on a node that we have isolated is an echo: of our reboot, above all
        words = {"reason": entry["reason"], "since": entry["since"], "codes": entry["codes"]}
        before = row.get("kept_out") or {}
        new = any(before.get(key) != value for key, value in words.items())
        if new and len(findings) < FINDINGS:
            findings += [_finding(row, code, asked_at, words) for code in words["codes"]]
            row = {**row, "kept_out": {**words, "told_at": gw.clock.now()}}
            news.append(row)
        there[str(row["node_id"])] = row
    over = [row for row in nodes if row.get("kept_out") and row["node_id"] not in there]
    findings += [_well(row, asked_at) for row in over if _works_again(row)]
    if findings:
        gw.bus.put(SOURCE, FINDING, findings)
    each(news, "Slurm's words about", lambda row: _remember(gw, row))
    each(over, "Slurm's words about", lambda row: _forget(gw, row))
    _mail(gw, [row for row in there.values() if row.get("kept_out")])
    return len(findings)


def _finding(row: Row, code: str, at: float, words: Mapping[str, Any]) -> Finding:
    detail = {"version": 1, "instance_id": row["node_id"], "kind": Kind.NODE_CONDITION.value, "code": code}
    since = {"since": words["since"]} if words["since"] else {}
    return {**detail, "time": at, "healthy": False, "description": words["reason"], **since}


def _well(row: Row, at: float) -> Finding:
    words = row["kept_out"]
    return {**_finding(row, words["codes"][0], at, words), "healthy": True, "description": ""}


def _works_again(row: Row) -> bool:
    """Without our doing: an isolation of ours has other words, and has cured nothing yet."""
    return row.get("phase") not in ACTIVE and not row.get("isolation") and not is_gone(row)


def _remember(gw: Gateways, row: Row) -> bool:
    gw.table.write(row["pk"], row["sk"], sets={"kept_out": row["kept_out"]})
    return True


def _forget(gw: Gateways, row: Row) -> bool:
    gw.table.write(row["pk"], row["sk"], removes=("kept_out",))
    return True


def _mail(gw: Gateways, rows: list[Row]) -> None:
    """Once an hour at most a person is told of nodes that stay out of work because nothing is done by itself
    about what Slurm says of them."""
    left = [row for row in rows if row.get("phase") not in ACTIVE and not _acts(gw, row)]
    told = holding.told_at(gw, MAIL)
    if not left or (told is not None and all(float(row["kept_out"]["told_at"]) <= told for row in left)):
        return
    named = [f"  {row.get('name') or row['node_id']}: {row['kept_out']['reason']}\n" for row in left]
    more = f"  and {len(named) - MOST_NAMED} more\n" if len(named) > MOST_NAMED else ""
    holding.tell_hourly(
        gw,
        MAIL,
        f"Planaria {gw.cluster.name}: Slurm keeps {len(left)} node(s) out of work by itself",
        "Slurm gives these nodes no work, for reasons on which alone Planaria does nothing:\n"
        f"{''.join(named[:MOST_NAMED])}{more}"
        "All of them: sinfo -R. What to do: docs/runbooks/held.md, Nodes that Slurm keeps out\n",
    )


def _acts(gw: Gateways, row: Row) -> bool:
    """The catalogue acts on one of these words alone."""
    family, answers = NodeView.from_row(row).family, gw.cluster.policy.catalog
    for code in row["kept_out"]["codes"]:
        entry = look_up(Kind.NODE_CONDITION.value, code, family, answers)
        if entry.action is not Action.MONITOR and entry.proof is Proof.SURE:
            return True
    return False
