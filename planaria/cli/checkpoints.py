"""`planaria checkpoints list` and `verify`, and the group that the others belong to."""

import time
from collections.abc import Sequence

import typer
from rich.text import Text

from planaria.cli import (
    checkpoint_jobs,
    checkpoint_moves,
    checkpoint_pin,
    checkpoint_places,
    checkpoint_prune,
    options,
    screen,
)
from planaria.cli import checkpoint_steps as steps
from planaria.cli.bars import Bars, size
from planaria.cli.checkpoint_choice import chosen
from planaria.cli.checkpoint_options import JobName, PlaceText, Steps
from planaria.cli.checkpoint_places import Bucket, Directory, Job, Opened, meant, open_store
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.saved_step import StepCopy, StepState, Tier

MOST_PROVEN = 10_000
"""Objects that `list` asks S3 about: some ten seconds."""

app = typer.Typer(
    no_args_is_help=True,
    help="A job's checkpoints: which there are and which are good, into S3 and back, and what may go.",
    epilog="Start with: planaria checkpoints list /fsx/ada/gpt",
    rich_markup_mode="rich",
)


@app.command("list")
def listing(
    place: PlaceText,
    job: JobName = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """List the steps of a job, newest first: what each is, and which one a resume would take.

    The newest is that of the last attempt, not the one with the highest number. Judged by manifests, names
    and sizes; `planaria checkpoints verify` reads every byte. The states: durable (in S3, proven there),
    complete (all there), partial (being written, or left so), foreign (another job's, or not readable),
    corrupt (was complete once).

    Example: planaria checkpoints list s3://my-bucket/checkpoints/gpt --json
    """
    where = checkpoint_places.parse(place)
    if isinstance(where, Job):
        found = checkpoint_jobs.look(checkpoint_jobs.known(where.job_id, cluster, folder, aws))
        copies, choice = found.copies, found.choice
    else:
        with Bars(as_json, objects=True) as bars:
            opened = open_store(where, job, moved=bars.moved)
            copies = proven(opened, meant(opened, opened.store.steps(), ()), bars)
        choice = chosen(copies, opened.job)
    rows = steps.listed(copies, choice.copy)
    if as_json:
        screen.emit([steps.document(one) for one in rows])
        return
    if not rows:
        screen.say(f"There is no checkpoint in {where}.", stderr=False)
        return
    shown = screen.console()
    shown.print(steps.picture(rows, time.time()))
    shown.print(_resumed(choice.copy, choice.why))
    if any(copy.sealable for copy in copies):
        screen.say(
            "What Planaria has not written has no manifest yet: `planaria checkpoints sync` gives it one.",
            stderr=False,
        )


def _resumed(copy: StepCopy | None, why: str) -> Text:
    if copy is None:
        return Text("A resume would take none: ", style="bold yellow").append(
            screen.clean(why), style="not bold"
        )
    line = Text(f"{steps.ARROW} ", style="bold green").append(
        f"a resume takes step {copy.step}", style="default"
    )
    return line.append(f" from {copy.tier.value}: {screen.clean(why)}", style="dim")


@app.command("verify")
def verify(
    place: PlaceText,
    step: Steps = [],  # noqa: B006  typer copies it
    job: JobName = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Check steps to the last byte; in S3, by the checksum that S3 keeps of every object.

    Ends with status 1 when any of them is not good. In S3 nothing is downloaded: one HeadObject for each
    object tells its size and its CRC64NVME. Of a job, its copies in S3 are checked.

    Example: planaria checkpoints verify /fsx/ada/gpt --step 4000
    """
    where = checkpoint_places.parse(place)
    with Bars(as_json, objects=not isinstance(where, Directory)) as bars:
        if isinstance(where, Job):
            of = checkpoint_jobs.known(where.job_id, cluster, folder, aws)
            opened = checkpoint_jobs.bucket_of_job(of, bars.moved)
        else:
            opened = open_store(where, job, moved=bars.moved)
        copies = meant(opened, opened.store.steps(), step)
        if not copies:
            raise PermanentError(f"there is no checkpoint in {opened.place}, so nothing is verified")
        checked = []
        for copy in sorted(copies, key=_by_step, reverse=True):
            bars.begin(f"step {steps.name_of(copy)}", work(copy, opened))
            began = time.monotonic()
            after = opened.store.verify(copy)
            checked.append(after)
            if not as_json:
                bars.note(_verified(after, time.monotonic() - began))
    bad = [copy for copy in checked if not _good(copy)]
    if as_json:
        screen.emit([_document(copy) for copy in checked])
    elif not bad:
        screen.say(f"All {len(checked)} are good." if len(checked) > 1 else "It is good.", stderr=False)
    if bad:
        if not as_json:
            screen.say(f"{len(bad)} of {len(checked)} steps in {opened.place} are not good.", stderr=False)
        raise typer.Exit(1)


def proven(opened: Opened, copies: Sequence[StepCopy], bars: Bars) -> list[StepCopy]:
    """Steps in S3, durable where every object was asked for; the newest first, up to MOST_PROVEN objects."""
    if not isinstance(opened.place, Bucket):
        return list(copies)
    found, asked = [], 0
    for copy in sorted(copies, key=_by_step, reverse=True):
        objects = work(copy, opened) if copy.usable and asked < MOST_PROVEN else 0
        if not objects or asked + objects > MOST_PROVEN:
            found.append(copy)
            continue
        asked += objects
        bars.begin(f"step {steps.name_of(copy)}", objects)
        found.append(opened.store.verify(copy))
    return found


def work(copy: StepCopy, opened: Opened) -> int:
    """How much a bar has to count: bytes of a file system, objects of a bucket."""
    if copy.tier is not Tier.S3:
        return copy.size
    try:
        return len(opened.store.manifest(copy).shards) + 1
    except InvalidInput:
        return 1


def _good(copy: StepCopy) -> bool:
    """In S3 what is not proven is not good enough."""
    return copy.state is StepState.DURABLE if copy.tier is Tier.S3 else copy.usable


def _by_step(copy: StepCopy) -> tuple[int, int]:
    return (copy.lineage.attempt if copy.lineage is not None else -1, copy.step)


def _document(copy: StepCopy) -> steps.Document:
    document = steps.document(steps.Listed([copy]))
    return {key: document[key] for key in ("step", "state", "reason", "bytes", "lineage", "tiers")} | {
        "place": copy.place
    }


def _verified(copy: StepCopy, seconds: float) -> Text:
    good = _good(copy)
    line = Text("✓ " if good else "✗ ", style="green" if good else "bold red")
    line.append(f"step {steps.name_of(copy)} ", style="default").append_text(steps.state_word(copy.state))
    if good:
        return line.append(f"  {size(copy.size)} in {screen.span(seconds)}", style="dim")
    return line.append(f"  {screen.clean(copy.reason)}", style="default")


for part in (checkpoint_moves, checkpoint_prune, checkpoint_pin):
    app.registered_commands += part.app.registered_commands
