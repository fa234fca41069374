"""`planaria demo`: shows planaria.sandbox.demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from planaria.cli import options, records, screen
from planaria.cli.incidents import bar_width, timeline
from planaria.core.errors import InvalidInput
from planaria.core.table import Row

if TYPE_CHECKING:
    from planaria.sandbox.demo import Summary

app = typer.Typer()
FAULTS = ("xid79", "broken-gpu", "spot", "terminate", "kill-rank")
SCHEDULERS = ("process", "slurm")


@app.command("demo")
def demo(
    fault: Annotated[
        str, typer.Option("--fault", metavar="FAULT", help=f"One of {', '.join(FAULTS)}.")
    ] = "xid79",
    node: Annotated[
        str, typer.Option("--node", metavar="N", help="The node that breaks, demo-1 to demo-4.")
    ] = "demo-3",
    scheduler: Annotated[
        str,
        typer.Option(
            "--scheduler", metavar="NAME", help="process, or slurm: a real one where it is installed."
        ),
    ] = "process",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the sandbox running afterwards.")] = False,
    boot_seconds: Annotated[
        float, typer.Option("--boot-seconds", min=0, max=600, help="How long an instance boots.")
    ] = 3.0,
    port: options.Port = 0,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            "--folder",
            metavar="FOLDER",
            help="Folder of the sandbox; a temporary one by default.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[Path, typer.Option("--png", metavar="FILE", help="Where the loss curve goes.")] = Path(
        "planaria-demo.png"
    ),
    as_json: options.Json = False,
) -> None:
    """Break a node of a small training cluster on this machine, and watch it heal.

    An AWS emulator starts, this repository's CDK app is deployed to it with the real CDK CLI, four nodes
    train a small GPT with PyTorch, one node breaks; it is isolated and replaced, and the job resumed. It
    takes one to two minutes and needs no AWS account. With --scheduler slurm the nodes are those of a real
    Slurm (apt install slurm-wlm), which runs without root beside whatever Slurm is there.

    Example: planaria demo --fault spot --node demo-2
    """
    if scheduler not in SCHEDULERS:
        raise InvalidInput(f"the demo cannot run on {scheduler!r:.40}; it runs on {', '.join(SCHEDULERS)}")
    if fault not in FAULTS:
        raise InvalidInput(f"the demo cannot show {fault!r:.40}; it shows {', '.join(FAULTS)}")
    if node not in ("demo-1", "demo-2", "demo-3", "demo-4"):
        raise InvalidInput(f"the demo has no node {node!r:.40}; it has demo-1, demo-2, demo-3 and demo-4")
    from planaria.sandbox.demo import DemoConfig, Watcher, run
    from planaria.sandbox.interruption import interruptible

    shown = screen.console(stderr=as_json)
    config = DemoConfig(
        fault=fault,
        node=node,
        folder=folder,
        port=port,
        keep=keep,
        boot_seconds=boot_seconds,
        scheduler=scheduler,
        picture=picture,
    )
    shown.print(Text("Planaria: a node of a training cluster breaks, and the training goes on.", "bold"))
    with interruptible(), screen.Stages(shown) as stages:

        def broke(text: str) -> None:
            stages.done()
            stages.note(Text("✗ ", style="bold red") + Text(text, style="bold"))

        def step(head: Row, row: Row) -> None:
            stages.note(records.step_line(head, row))

        summary = run(config, Watcher(stages, broke, step))
    if as_json:
        screen.emit(summary.document())
        return
    show(summary, shown)


def show(summary: "Summary", shown: Console) -> None:
    """The summary for people, from the timeline to the loss curve."""
    from planaria.sandbox.plots import terminal

    width = min(shown.width, 100)
    shown.print()
    shown.print(Rule("the incident, seconds since the fault was seen", style="dim"), width=width)
    shown.print(timeline(summary.incident, summary.steps, bar_width(width)))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    outcome = screen.word(summary.incident["outcome"])
    facts.add_row("outcome", outcome + Text(f"  incident {summary.incident['incident_id']}", style="dim"))
    if summary.replacement_id:
        facts.add_row("node", f"{summary.node}: {summary.lost_id} lost -> {summary.replacement_id}")
    else:
        facts.add_row("node", "none was touched: a process of the job had died, its node was well")
    start = f"step {summary.resume_step}" if summary.resume_step >= 0 else "the beginning (no checkpoint yet)"
    facts.add_row(
        "job", f"broke at step {summary.broke_at}, resumed from {start}: {_lost(summary.steps_lost)}"
    )
    back = Text(screen.span(summary.back_seconds), "bold")
    facts.add_row("back after", back + Text(" from fault to first new step"))
    parts = [f"node boot {screen.span(summary.boot_seconds)}"] if summary.boot_seconds else []
    parts += [
        f"rank start-up {screen.span(summary.rank_seconds)}",
        f"Planaria itself {screen.span(summary.control_seconds)}",
    ]
    facts.add_row("of that", ", ".join(parts))
    if summary.transitions:
        cents = summary.dollars * 100
        facts.add_row(
            "on AWS", f"at least {summary.transitions} state transitions, {cents:.2f} cents at list price"
        )
    shown.print(facts)
    shown.print()
    shown.print(Rule("loss over time", style="dim"), width=width)
    shown.print(Text.from_ansi(terminal(summary.points, summary.breaks, width)), no_wrap=True, crop=False)
    shown.print(Text(f"The loss curve as a picture: {summary.picture}"), soft_wrap=True)
    if summary.sandbox:
        option = "" if "/.cache/planaria/sandbox/demo" in summary.sandbox else f" --dir {summary.sandbox}"
        shown.print(Text(f"The sandbox still runs; `planaria sandbox down{option}` ends it."), soft_wrap=True)


def _lost(steps: int) -> str:
    return {0: "no step is done again", 1: "1 step is done again"}.get(steps, f"{steps} steps are done again")
