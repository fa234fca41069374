"""`planaria triage --observe`: what would be done about these events, and why."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from planaria.cli import explained, options, screen
from planaria.core.errors import InvalidInput

app = typer.Typer()


@app.command("triage")
def triage(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Each holds one event as JSON, or a list; - reads stdin.",
            show_default=False,
        ),
    ],
    observe: Annotated[bool, typer.Option("--observe", help="Judge only; nothing is done.")] = False,
    explain: Annotated[
        bool | None,
        typer.Option(
            "--explain/--brief",
            help="Parse, fault, rule with its sources, decision of each; the default for a single event.",
            show_default=False,
        ),
    ] = None,
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
        typer.Option(
            "--cluster",
            "--cluster-file",
            metavar="FILE",
            help="Cluster file, for its policy.",
            show_default=False,
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Judge recorded events offline: no AWS, no sandbox.

    The events of one file know of each other: a repeat is a duplicate, a second fault joins the incident of
    the first.

    Example: planaria triage --observe --explain event.json
    """
    from planaria import triage_offline

    if not observe:
        raise InvalidInput("triage of files only observes; say so with --observe")
    found = triage_offline.run(files, inventory=inventory, cluster=cluster, sequence=sequence)
    found = [explained.readable(each) for each in found]
    if as_json:
        screen.emit(found)
        return
    if not found:
        screen.say("The files hold no event.", stderr=False)
        return
    shown = screen.console()
    if explain or (explain is None and len(found) == 1):
        for each in found:
            shown.print(explained.block(_title(each), each))
        return
    rows = [(each["outcome"], each["action"], _what(each)) for each in found]
    shown.print(screen.table(("OUTCOME", "ACTION", "EVENT"), rows, fold=("EVENT",)))


def _title(judged: dict[str, Any]) -> Text:
    title = screen.word(judged["outcome"])
    title.append(f" {judged['action'] or ''}".rstrip(), style="bold")
    return title.append(
        f"  {Path(judged['file']).name}  {judged['event_id'] or ''}".rstrip(), style="not bold"
    )


def _what(judged: dict[str, Any]) -> Text:
    """The event in one line, the reason below it."""
    text = Text(Path(judged["file"]).name, style="bold")
    for part in (judged["kind"], judged["code"], judged["node_id"]):
        text.append(f"  {part}" if part else "", style="not bold")
    return text.append(f"\n{judged['reason']}", style="not bold dim")
