"""`planaria incidents` and `planaria incident ID`."""

import time
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from planaria.cli import options, records, screen
from planaria.cli.target import connect
from planaria.core.table import Row

app = typer.Typer()


@app.command("incidents")
def incidents(
    is_open: Annotated[bool, typer.Option("--open", help="Only those that have not ended.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The newest N.")] = 20,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """List incidents, the newest first.

    Example: planaria incidents --open
    """
    gateways = connect(cluster, folder, aws).gateways
    heads = [head for head in gateways.ledger.incidents() if not (is_open and head.get("outcome"))]
    nodes = list(gateways.ledger.nodes())
    names, waiting = records.names_of(nodes), records.waiting(nodes)
    documents = [
        records.incident_summary(head, names, waiting) for head in records.newest_first(heads)[:limit]
    ]
    if as_json:
        screen.emit(documents)
        return
    if not documents:
        nothing = "No incident is open." if is_open else "No incident yet: no node has failed."
        screen.say(f"{nothing} In a sandbox, `planaria inject xid79 --node demo-3` breaks one.", stderr=False)
        return
    now = time.time()
    opened = {head["incident_id"]: screen.ago(head.get("opened_at"), now) for head in heads}
    rows = [
        (
            d["incident_id"],
            d["name"] or d["node_id"] or d["job_id"],
            d["action"],
            d["outcome"] or _open(d["approval"] is not None),
            opened[d["incident_id"]],
            screen.span(d["seconds"]) if d["seconds"] is not None else None,
            d["reason"],
        )
        for d in documents
    ]
    columns = ("INCIDENT", "NODE", "ACTION", "OUTCOME", "OPENED", "TOOK", "WHY")
    screen.console().print(screen.table(columns, rows, clip=("WHY",)))


@app.command("incident")
def incident(
    incident_id: Annotated[str, typer.Argument(metavar="ID", help="As `planaria incidents` lists it.")],
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Show one incident: what was done, and the seconds of every step.

    Example: planaria incident i-0123456789abcdef0-1793610845123 --json
    """
    gateways = connect(cluster, folder, aws).gateways
    head, steps = records.read_incident(gateways, incident_id)
    if as_json:
        screen.emit(records.incident_document(head, steps))
        return
    names = records.names_of(gateways.ledger.nodes())
    shown = screen.console()
    shown.print(picture(head, steps, names, bar_width(shown.width)))


def _open(waits: bool) -> Text:
    """The outcome of an incident that has none yet."""
    return Text("waits for you", style="yellow") if waits else Text("running", style="cyan")


def picture(head: Row, steps: list[Row], names: dict[str, str], bar: int) -> Group:
    """An incident for people: its facts, then its timeline."""
    node = head.get("node_id")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")

    def fact(name: str, value: Any) -> None:
        if value not in (None, ""):
            facts.add_row(name, value if isinstance(value, Text) else Text(str(value)))

    fact("incident", Text(str(head["incident_id"]), style="bold"))
    fact("node", f"{names[node]} ({node})" if node in names else node)
    fact("replaced by", head.get("replacement_id"))
    fact("job", head.get("job_id"))
    fact("action", f"{head.get('action')} ({head.get('rule', '')})")
    fact("why", head.get("reason"))
    done = {str(row["step"]) for row in steps}
    asked = "approval_asked" in done and "approved" not in done
    fact("outcome", screen.word(head["outcome"]) if head.get("outcome") else _open(asked))
    fact("because", head.get("outcome_reason"))
    fact("warning", head.get("warning"))
    if head.get("resume_step") is not None:
        why = f" ({head['resume_step_reason']})" if head.get("resume_step_reason") else ""
        fact(
            "resumed from",
            f"step {head['resume_step']}{why}" if head["resume_step"] >= 0 else why.strip(" ()"),
        )
    fact("opened", screen.iso(head.get("opened_at")))
    fact("execution", head.get("execution_arn"))
    return Group(facts, timeline(head, steps, bar))


def bar_width(columns: int) -> int:
    """Columns for the bars of a timeline in a terminal that is this wide."""
    return 26 if columns >= 96 else 10


def timeline(head: Row, steps: list[Row], width: int) -> Table:
    """The steps with their seconds and a bar of when they happened, `width` columns wide."""
    began = float(head.get("detected_at") or head.get("opened_at") or 0.0)
    length = max([float(row["at"]) - began for row in steps] + [1e-6])
    rows = []
    last = 0.0
    for row in steps:
        seconds = float(row["at"]) - began
        left, right = (max(0, min(width - 1, round(at / length * (width - 1)))) for at in (last, seconds))
        bar = Text(" " * left, style="") + Text("─" * (right - left), style="dim") + Text("●", style="cyan")
        took = f"{max(0.0, seconds - last):+.2f}"
        rows.append(
            (
                Text(records.step_name(row["step"])),
                Text(f"{seconds:7.2f} s"),
                Text(took, style="dim"),
                bar,
                Text(records.step_detail(row), style="dim"),
            )
        )
        last = max(last, seconds)
    return screen.table(("STEP", "AT", "TOOK", "", ""), rows)
