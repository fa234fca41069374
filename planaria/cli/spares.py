"""`planaria spares`."""

from typing import Annotated

import typer

from planaria.cli import options, records, screen
from planaria.cli.target import connect
from planaria.core import pool
from planaria.core.pool import SpareState, View
from planaria.core.table import Row
from planaria.wiring import Gateways

app = typer.Typer()


@app.command("spares")
def spares(
    group: Annotated[
        str, typer.Option("--group", metavar="NAME", help="Of this node group alone.", show_default=False)
    ] = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """List the warm pools: how many spares stand by, and when each was last checked.

    Example: planaria spares --json
    """
    target = connect(cluster, folder, aws)
    gateways = target.gateways
    views = [pool.read(gateways.ledger, name) for name in _groups(gateways) if group in ("", name)]
    documents = [pool_document(gateways, view) for view in views]
    if as_json:
        screen.emit(documents)
        return
    if not documents:
        of = f"node group {group} of cluster {target.cluster}" if group else f"cluster {target.cluster}"
        screen.say(
            f"There is no warm pool in {of}: `spares: 2` in a node group of the cluster file keeps two nodes "
            "standing by.",
            stderr=False,
        )
        return
    _show(documents, views, gateways.clock.now())


def _groups(gateways: Gateways) -> list[str]:
    """Those of the cluster file, where it is known, and those that sweep has seen in it."""
    noted = {str(row["group"]) for row in gateways.table.listing(pool.LISTING)}
    return sorted(noted | {g.name for g in gateways.cluster.node_groups.values() if g.spares})


def pool_document(gateways: Gateways, view: View) -> records.Document:
    """One pool as scripts see it; `target` as sweep has it from the deployed cluster file."""
    known = gateways.cluster.node_groups.get(view.group)
    target = view.head.get("target", known.spares if known else 0)
    of_state = {state: len(view.of(state)) for state in SpareState}
    return {
        "group": view.group,
        "target": target,
        "free": of_state[SpareState.FREE],
        "filling": len(view.filling),
        "taken": of_state[SpareState.TAKEN],
        "spares": [_spare(row) for row in _in_order(view)],
        "refills": [_refill(slot, view) for _, slot in sorted(view.slots.items()) if _tells(slot)],
    }


def _in_order(view: View) -> list[Row]:
    return sorted(view.of(*SpareState), key=lambda row: (str(row["spare"]["state"]), row["node_id"]))


def _spare(row: Row) -> records.Document:
    spare = row["spare"]
    return {
        "node_id": row["node_id"],
        "state": spare["state"],
        "incident_id": spare.get("by"),
        "instance_type": row.get("instance_type") or None,
        "zone": row.get("zone") or None,
        "launched_at": screen.iso(row.get("launched_at")),
        "checked_at": screen.iso(spare.get("checked_at") or None),
        "asked_at": screen.iso(spare.get("asked_at")),
        "failed_checks": int(spare.get("failed", 0)),
        "reason": row.get("lost") or spare.get("why") or None,
    }


def _tells(slot: Row) -> bool:
    return slot.get("phase") != "FILLED"


def _refill(slot: Row, view: View) -> records.Document:
    """A refill that is under way, or one that failed and is tried again."""
    active = slot in view.filling
    return {
        "refill_id": f"{slot['group']}-{slot['slot']}-{slot['generation']}",
        "begun_at": screen.iso(slot.get("opened_at")),
        "node_id": slot.get("instance_id"),
        "execution_arn": slot.get("execution_arn"),
        "failures": int(slot.get("failures", 0)),
        "reason": None if active else slot.get("outcome_reason") or None,
        "retry_at": None if active else screen.iso(slot.get("retry_at")),
    }


def _show(documents: list[records.Document], views: list[View], now: float) -> None:
    shown = screen.console()
    keys = ("group", "target", "free", "filling", "taken")
    rows = [[document[key] for key in keys] for document in documents]
    shown.print(screen.table(("GROUP", "TARGET", "FREE", "FILLING", "TAKEN"), rows))
    rows = []
    for document, view in zip(documents, views, strict=True):
        for spare in document["spares"]:
            checked = screen.ago(view.nodes[spare["node_id"]]["spare"].get("checked_at") or None, now)
            note = spare["reason"] or (f"for {spare['incident_id']}" if spare["incident_id"] else None)
            rows.append([view.group, spare["node_id"], spare["state"], spare["zone"], checked, note])
    if rows:
        columns = ("GROUP", "ID", "STATE", "ZONE", "CHECKED", "NOTE")
        shown.print(screen.table(columns, rows, fold=("NOTE",)))
    for refill in [refill for document in documents for refill in document["refills"]]:
        if refill["reason"]:
            when = f"; it is tried again after {refill['retry_at']}" if refill["retry_at"] else ""
            screen.say(f"{refill['refill_id']} was not filled: {refill['reason']}{when}", stderr=False)
