"""`planaria triage --observe`: what would be done about these events."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

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
    if not found:
        screen.say("The files hold no event.", stderr=False)
        return
    rows = [(each["outcome"], each["action"], _what(each)) for each in found]
    screen.console().print(screen.table(("OUTCOME", "ACTION", "EVENT"), rows, fold=("EVENT",)))


def _what(judged: dict[str, Any]) -> Text:
    """The event in one line, the reason below it."""
    text = Text(Path(judged["file"]).name, style="bold")
    for part in (judged["kind"], judged["code"], judged["node_id"]):
        text.append(f"  {part}" if part else "", style="not bold")
    return text.append(f"\n{judged['reason']}", style="not bold dim")
