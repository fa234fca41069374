"""What goes of a place's steps and what stays, for scripts and for people."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from planaria.cli import checkpoint_steps as steps
from planaria.cli import screen
from planaria.cli.bars import size
from planaria.cli.checkpoint_places import Opened
from planaria.core.retention import Plan, Pruned
from planaria.core.saved_step import StepCopy


@dataclass(frozen=True, slots=True)
class Fate:
    """What the plan said of a step, and what became of it. removed: it is gone."""

    copy: StepCopy
    goes: bool
    why: str
    removed: bool = False
    failed: bool = False


def fates_of(planned: Plan, done: Pruned) -> list[Fate]:
    """One for each step of the plan, in its order."""
    failed = {copy.place: why for copy, why in done.failed}
    removed = {copy.place for copy in done.removed}
    return [
        Fate(
            verdict.copy,
            verdict.goes,
            failed.get(verdict.copy.place, verdict.why),
            verdict.copy.place in removed,
            verdict.copy.place in failed,
        )
        for verdict in planned.verdicts
    ]


def document(opened: Opened, fates: Sequence[Fate], swept: list[str], done: bool) -> steps.Document:
    """What `planaria checkpoints prune --json` prints."""
    return {
        "place": str(opened.place),
        "job": opened.job,
        "dry_run": not done,
        "bytes": sum(fate.copy.size for fate in fates if fate.goes),
        "steps": [
            {
                "step": fate.copy.step,
                "state": fate.copy.state.value,
                "goes": fate.goes,
                "removed": fate.removed,
                "why": fate.why,
                "bytes": fate.copy.size,
                "lineage": steps.lineage_document(fate.copy.lineage),
                "place": fate.copy.place,
            }
            for fate in fates
        ],
        "unfinished": swept,
    }


def show(opened: Opened, fates: Sequence[Fate], swept: list[str], done: bool) -> None:
    """The same for people."""
    rows = [
        (
            Text(steps.name_of(fate.copy).rjust(6), style="bold" if fate.goes else "default"),
            steps.state_word(fate.copy.state),
            Text(size(fate.copy.size).rjust(9)),
            _word(fate, done),
            Text(screen.clean(fate.why), style="dim"),
        )
        for fate in fates
    ]
    if rows:
        screen.console().print(screen.table(("STEP", "STATE", "SIZE", "", "WHY"), rows, fold=("WHY",)))
    for name in swept:
        screen.say(f"left unfinished{', removed' if done else ''}: {name}", stderr=False)
    going = [fate.copy for fate in fates if fate.goes]
    if not rows:
        screen.say(f"There is no checkpoint in {opened.place}.", stderr=False)
    elif not going:
        screen.say("Nothing goes.", stderr=False)
    elif done:
        screen.say(f"{sum(fate.removed for fate in fates)} of {len(rows)} steps removed.", stderr=False)
    else:
        what = "1 step" if len(going) == 1 else f"{len(going)} steps"
        total = size(sum(copy.size for copy in going))
        screen.say(
            f"{what} of {len(rows)} would go, {total}; nothing was removed: --yes does it.", stderr=False
        )


def _word(fate: Fate, done: bool) -> Text:
    if fate.failed:
        return Text("not removed", style="bold red")
    if fate.removed:
        return Text("removed", style="yellow")
    if not fate.goes:
        return Text("stays", style="green")
    # It would have gone, but what has happened meanwhile keeps it.
    return Text("stays", style="green") if done else Text("goes", style="yellow")
