"""`planaria nodes`."""

from typing import Annotated

import typer

from planaria.cli import options, records, screen
from planaria.cli.target import connect

app = typer.Typer()
GONE = ("terminated", "shutting-down")


@app.command("nodes")
def nodes(
    everything: Annotated[bool, typer.Option("--all", help="Also the nodes that are gone.")] = False,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """List the cluster's nodes with their health.

    Example: planaria nodes --json
    """
    target = connect(cluster, folder, aws)
    gateways = target.gateways
    documents = [
        document
        for document in records.node_documents(
            gateways.ledger.nodes(),
            gateways.fleet.cluster(),
            gateways.cluster.policy,
            gateways.clock.now(),
        )
        if everything or document["state"] not in GONE
    ]
    if as_json:
        screen.emit(documents)
        return
    if not documents:
        screen.say(
            f"Cluster {target.cluster} has no nodes: an EC2 instance belongs to it by the tag "
            f"planaria:cluster={target.cluster} and is listed within a minute.",
            stderr=False,
        )
        return
    keys = ("name", "node_id", "instance_type", "zone", "state", "health", "job_id", "incident_id")
    columns: tuple[str, ...] = ("NAME", "ID", "TYPE", "ZONE", "STATE", "HEALTH", "JOB", "INCIDENT")
    rows = [[document[key] for key in keys] for document in documents]
    said_of = (("SPARE", _spare), ("HELD", _held), ("PLANNED", _planned), ("SUSPECT", _suspect))
    for name, said in said_of:
        cells = [said(document) for document in documents]
        if any(cells):
            columns = (*columns, name)
            rows = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
    fold = ("HEALTH", "INCIDENT", "HELD", "PLANNED", "SUSPECT")
    screen.console().print(screen.table(columns, rows, fold=fold))


def _spare(document: records.Document) -> str | None:
    word = document["spare"]
    return None if word is None else str(word)


def _held(document: records.Document) -> str | None:
    """Why nothing is done about the node at present."""
    if document["approval"]:
        return f"waits for approval until {document['approval']['until']}"
    return str(document["held"]) if document["held"] else None


def _planned(document: records.Document) -> str | None:
    """When AWS takes the node, and when it is drained for that."""
    return str(document["planned"][0]["says"]) if document["planned"] else None


def _suspect(document: records.Document) -> str | None:
    """Faults that were seen, that ask for an act, and that nothing was done about."""
    return "\n".join(_suspicion(one) for one in document["suspect"]) or None


def _suspicion(one: records.Document) -> str:
    what = f"{one['kind']} {one['code']}" if one["kind"] != one["code"] else one["kind"]
    return (
        f"{what}: waits for {one['waits_for']}" if one["waits_for"] else f"{what}: asks for {one['action']}"
    )
