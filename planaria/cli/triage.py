"""`planaria triage --observe`: what would be done about these events."""

from pathlib import Path
from typing import Annotated

import typer

from planaria.cli import options, screen
from planaria.core.errors import InvalidInput

app = typer.Typer()


@app.command("triage")
def triage(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Each holds one event as JSON, or a list.", show_default=False
        ),
    ],
    observe: Annotated[bool, typer.Option("--observe", help="Judge only; nothing is done.")] = False,
    sequence: Annotated[
        bool, typer.Option("--sequence", help="Keep what was judged from file to file.")
    ] = False,
    inventory: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON list of the managed nodes; without it every instance that an event names is managed.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Cluster file, for its policy.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Judge recorded events offline: no AWS, no sandbox.

    Example: planaria triage --observe --json event.json
    """
    from planaria import triage_offline

    if not observe:
        raise InvalidInput("triage of files only observes; say so with --observe")
    found = triage_offline.run(files, inventory=inventory, cluster=cluster, sequence=sequence)
    if as_json:
        screen.emit(found)
        return
    keys = ("file", "node_id", "kind", "code", "outcome", "action", "reason")
    rows = [[Path(each[key]).name if key == "file" else each[key] for key in keys] for each in found]
    if not rows:
        screen.say("The files hold no event.", stderr=False)
        return
    columns = ("FILE", "NODE", "KIND", "CODE", "OUTCOME", "ACTION", "REASON")
    screen.console().print(screen.table(columns, rows, fold=("FILE", "CODE", "REASON")))
