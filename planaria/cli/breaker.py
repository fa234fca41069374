"""`planaria breaker`: what it allows, what it has tripped on, who is held; and closing it by hand."""

from typing import Annotated, Any

import typer
from rich.text import Text

from planaria.cli import options, records, screen
from planaria.cli.orders import person
from planaria.cli.target import Target, connect
from planaria.core.console import REASON_LENGTH
from planaria.core.errors import InvalidInput
from planaria.core.incident import NODE_ID
from planaria.core.wording import span

app = typer.Typer()

Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it stands in the ledger.", show_default=False)
]


@app.callback(invoke_without_command=True)
def status(
    context: typer.Context,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Show how many removals are allowed and used, whether the breaker is tripped, and which nodes are held.

    Example: planaria breaker --json
    """
    if context.invoked_subcommand is not None:
        sources = {name: context.get_parameter_source(name) for name in context.params}
        if any(getattr(source, "name", "") == "COMMANDLINE" for source in sources.values()):
            raise InvalidInput("options stand after the command: `planaria breaker close --reason TEXT ...`")
        return
    document = describe(connect(cluster, folder, aws))
    if as_json:
        screen.emit(document)
        return
    _show(document)


@app.command("close")
def close(
    reason: Reason,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Close the breaker by hand: it starts as new, and held nodes are judged anew within a minute.

    Example: planaria breaker close --reason "the bad driver is rolled back"
    """
    if not 0 < len(reason.strip()) <= REASON_LENGTH:
        raise InvalidInput(f"--reason must say why, in at most {REASON_LENGTH} characters")
    target = connect(cluster, folder, aws)
    before = describe(target)
    by, now = person(), target.gateways.clock.now()
    target.gateways.breaker.close(by, reason, now)
    if as_json:
        screen.emit({"closed": {"at": screen.iso(now), "by": by, "reason": reason}, "before": before})
        return
    held = len(before["held"])
    nodes = "no node is held" if not held else f"{held} held node{'' if held == 1 else 's'}"
    after = "" if not held else " will be judged anew within a minute"
    screen.say(
        f"The breaker is closed: {len(before['removals'])} removals forgotten; {nodes}{after}.", stderr=False
    )


def describe(target: Target) -> dict[str, Any]:
    """The document of `planaria breaker --json`."""
    gateways = target.gateways
    now, rows = gateways.clock.now(), gateways.ledger.nodes()
    names = records.names_of(rows)
    found = gateways.breaker.as_noted().status(now)
    open_ones = found["circuits"]
    probing = any(circuit.get("probe") for circuit in open_ones)
    state = "closed" if not open_ones else "half-open" if probing else "tripped"
    closed = found["closed"]
    return {
        "state": state,
        "max_removals": found["cap"],
        "max_per_detector": found["per_detector"],
        "window_seconds": found["window_seconds"],
        "removals": [
            {
                "incident_id": incident,
                "node_id": _node(incident),
                "name": names.get(_node(incident)),
                "detector": found["detectors"].get(incident),
                "at": screen.iso(at),
                "age_seconds": round(now - float(at), 3),
            }
            for incident, at in sorted(found["removals"].items(), key=lambda pair: float(pair[1]))
        ],
        "tripped": [
            {
                "who": circuit["who"],
                "since": screen.iso(circuit["at"]),
                "probe": circuit.get("probe"),
                "waits": circuit["waits"],
            }
            for circuit in open_ones
        ],
        "closed_by_hand": {**closed, "at": screen.iso(closed["at"])} if closed else None,
        "held": [
            {
                "node_id": row["node_id"],
                "name": row.get("name"),
                "since": screen.iso(row.get("held_since")),
                "why": row.get("held_reason"),
            }
            for row in rows
            if row.get("held") and row.get("held_since")
        ],
    }


def _show(document: dict[str, Any]) -> None:
    shown, used = screen.console(), document["removals"]
    window = span(document["window_seconds"])
    own = document["max_per_detector"]
    detector = f", {own} for one detector" if own != document["max_removals"] else ""
    colour = {"closed": "green", "half-open": "yellow"}.get(document["state"], "red")
    shown.print(
        Text("The breaker is ")
        + Text(document["state"], style=colour)
        + Text(f": {len(used)} of {document['max_removals']} removals used within {window}{detector}.")
    )
    for circuit in document["tripped"]:
        shown.print(Text(f"{circuit['who']}: {circuit['waits']}", style="yellow"))
    if document["closed_by_hand"]:
        closed = document["closed_by_hand"]
        shown.print(Text(f"Closed by {closed['by']} at {closed['at']}: {closed['reason']}", style="dim"))
    if used:
        rows = [
            (d["name"] or d["node_id"], d["detector"], f"{span(d['age_seconds'])} ago", d["incident_id"])
            for d in used
        ]
        shown.print(screen.table(("REMOVED", "DETECTOR", "WHEN", "INCIDENT"), rows))
    if document["held"]:
        rows = [(d["name"] or d["node_id"], d["node_id"], d["since"], d["why"]) for d in document["held"]]
        shown.print(screen.table(("HELD", "ID", "SINCE", "WHY"), rows, fold=("WHY",)))
    if document["state"] != "closed":
        shown.print(
            "To go on at once: `planaria replace NODE --override-breaker`, or "
            "`planaria breaker close --reason TEXT`.",
            highlight=False,
        )


def _node(incident: str) -> str:
    node = incident.rpartition("-")[0]
    return node if NODE_ID.match(node) else incident
