"""`planaria quarantine`: hardware that is not to be used again, and letting it be used."""

from typing import Annotated, Any

import typer

from planaria.cli import options, records, screen
from planaria.cli.orders import person
from planaria.cli.target import connect
from planaria.core.console import REASON_LENGTH
from planaria.core.errors import InvalidInput
from planaria.core.quarantine import Quarantine, stands
from planaria.core.table import Row

app = typer.Typer()

Hardware = Annotated[
    str,
    typer.Argument(metavar="ID", help="Of an instance or a Dedicated Host, as listed.", show_default=False),
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it stands in the ledger.")]


@app.callback(invoke_without_command=True)
def listing(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Also what is released or over.")] = False,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """List the instances and hosts that Planaria does not use again, the newest first.

    Example: planaria quarantine --json
    """
    if context.invoked_subcommand is not None:
        sources = {name: context.get_parameter_source(name) for name in context.params}
        if any(getattr(source, "name", "") == "COMMANDLINE" for source in sources.values()):
            raise InvalidInput("options stand after the command: `planaria quarantine release ID ...`")
        return
    gateways = connect(cluster, folder, aws).gateways
    now = gateways.clock.now()
    documents = [describe(row, now) for row in Quarantine(gateways.table).all(now, everything)]
    if as_json:
        screen.emit(documents)
        return
    if not documents:
        screen.say("Nothing is quarantined.", stderr=False)
        return
    rows = [
        (
            d["id"],
            d["of"],
            d["name"] or d["node_id"],
            d["at"],
            d["until"] if d["stands"] else _end(d),
            d["reason"],
        )
        for d in documents
    ]
    columns = ("ID", "WHAT", "NODE", "SINCE", "UNTIL", "WHY")
    screen.console().print(screen.table(columns, rows, fold=("WHY",)))


@app.command("release")
def release(
    hardware: Hardware,
    reason: Reason = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Let quarantined hardware be used again: an instance with the host that it was found bad on, or a host.

    Example: planaria quarantine release i-0123456789abcdef0 --reason "AWS has changed the board"
    """
    if len(reason) > REASON_LENGTH:
        raise InvalidInput(f"--reason must have at most {REASON_LENGTH} characters")
    gateways = connect(cluster, folder, aws).gateways
    by, now = person(), gateways.clock.now()
    released = Quarantine(gateways.table).release(hardware, by, reason, now)
    if as_json:
        screen.emit({"released": released, "by": by, "reason": reason, "at": screen.iso(now)})
        return
    screen.say(f"Released: {', '.join(released)}.", stderr=False)


def describe(row: Row, now: float) -> records.Document:
    """The object of one entry in `planaria quarantine --json`."""
    released: dict[str, Any] | None = row.get("released")
    return {
        "id": row["hardware"],
        "of": row["of"],
        "stands": stands(row, now),
        "node_id": row["node_id"],
        "host": row["host"] or None,
        "name": row["name"] or None,
        "instance_type": row["instance_type"] or None,
        "zone": row["zone"] or None,
        "reason": row["reason"],
        "incident_id": row["incident_id"],
        "at": screen.iso(row["at"]),
        "until": screen.iso(row["until"]),
        "released": {**released, "at": screen.iso(released["at"])} if released else None,
    }


def _end(document: records.Document) -> str:
    released = document["released"]
    return f"released by {released['by']}" if released else f"over since {document['until']}"
