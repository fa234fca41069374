"""`planaria checkpoints sync` and `restore`: a directory to S3 and back; of a job, its cluster does it."""

from typing import Annotated

import typer
from rich.text import Text

from planaria.cli import checkpoint_jobs, checkpoint_orders, checkpoint_places, options, orders, screen
from planaria.cli import checkpoint_steps as steps
from planaria.cli.bars import Bars, size
from planaria.cli.checkpoint_options import JobName, Steps
from planaria.cli.checkpoint_outcome import Ended, Outcome
from planaria.cli.checkpoint_places import Directory, Job, open_store
from planaria.core.errors import InvalidInput, PermanentError

app = typer.Typer()

From = Annotated[
    str,
    typer.Argument(
        metavar="FROM",
        help="Where the steps are: a directory (./ckpt, /fsx/gpt), s3://BUCKET/PREFIX, or a job's id.",
        show_default=False,
    ),
]
To = Annotated[
    str, typer.Argument(metavar="TO", help="Where they go; of a job, nothing.", show_default=False)
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Of a job: follow it to its end.")]


@app.command("sync")
def sync(
    source: From,
    target: To = "",
    step: Steps = [],  # noqa: B006  typer copies it
    job: JobName = "",
    reason: orders.Reason = "",
    wait: Wait = True,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Make checkpoints durable: copy what is complete to S3 and prove it there.

    The oldest step first; what is in S3 already is not sent again, so that a sync that was broken off goes on
    where it was. A step counts as durable once S3 tells the right size and checksum of every object, and its
    manifest is written last. A checkpoint that was written without Planaria gets its manifest now: PyTorch's
    distributed checkpoints, safetensors with an index, single torch.save files. What is still being written,
    damaged or another job's is passed over, with the reason.

    Of a job, its cluster copies: the state machine sync_checkpoints is started and followed.

    Example: planaria checkpoints sync /fsx/ada/gpt s3://my-bucket/checkpoints/gpt
    """
    where = checkpoint_places.parse(source)
    if isinstance(where, Job):
        _no_target(target, "sync")
        of = checkpoint_jobs.known(where.job_id, cluster, folder, aws)
        checkpoint_orders.sync(of, step, reason, wait, as_json)
        return
    if not isinstance(where, Directory):
        raise InvalidInput(
            f"sync copies to S3, and {where} is there: `planaria checkpoints restore` copies back"
        )
    if not target:
        raise InvalidInput(
            f"name where in S3 the steps go: planaria checkpoints sync {source:.60} s3://BUCKET/PREFIX"
        )
    into = checkpoint_places.parse_bucket(target)
    if into.only:
        raise InvalidInput(
            f"{into} is one step's place: name the one above it, which holds all steps of the job"
        )
    opened = open_store(where, job, strict=True)
    if not opened.settled:
        screen.say(
            f"No manifest says whose these are: they become job {opened.job!r:.60}; --job says otherwise."
        )
    from planaria.cli.checkpoint_copying import sync_steps

    with Bars(as_json) as bars:
        outcomes = []
        for outcome in sync_steps(opened, into, step, bars):
            outcomes.append(outcome)
            bars.note(_line(outcome, "is durable in S3"))
    _finish(outcomes, as_json, f"no step in {opened.place} is complete, so nothing was copied")


@app.command("restore")
def restore(
    source: From,
    target: To = "",
    step: Steps = [],  # noqa: B006  typer copies it
    job: JobName = "",
    reason: orders.Reason = "",
    wait: Wait = True,
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Bring a checkpoint back from S3, checked to the last byte.

    Without --step the newest good one; where a copy turns out bad the next older one is taken, and that is
    said. Until all of it is there and right the directory ends with .tmp, and no resume takes it. What a
    restore that was broken off has brought is kept.

    Of a job, its cluster does it: the state machine restore_checkpoint is started and followed.

    Example: planaria checkpoints restore s3://my-bucket/checkpoints/gpt /fsx/ada/gpt
    """
    where = checkpoint_places.parse(source)
    if isinstance(where, Job):
        of = checkpoint_jobs.known(where.job_id, cluster, folder, aws)
        checkpoint_orders.restore(of, step, target, reason, wait, as_json)
        return
    if isinstance(where, Directory):
        raise InvalidInput(
            f"restore copies from S3, and {where} is a directory: `planaria checkpoints sync` copies to S3"
        )
    if not target:
        raise InvalidInput(
            f"name the directory that the step goes to: planaria checkpoints restore {source:.60} DIRECTORY"
        )
    into = checkpoint_places.parse_directory(target)
    if into.only:
        raise InvalidInput(
            f"{into} is one step's directory: name the one above it, which holds all steps of the job"
        )
    opened = open_store(where, job, strict=True)
    from planaria.cli.checkpoint_restoring import restore_newest, restore_steps

    outcomes = []
    with Bars(as_json) as bars:
        brought = (restore_steps if step or opened.only else restore_newest)(opened, into, step, bars)
        for outcome in brought:
            outcomes.append(outcome)
            bars.note(_line(outcome, f"is in {outcome.place}"))
    if outcomes and not as_json and not any(outcome.good or outcome.stops for outcome in outcomes):
        screen.say(f"planaria: Nothing was restored: no copy in {opened.place} that was tried is good.")
    _finish(
        outcomes, as_json, f"there is no checkpoint of job {opened.job!r:.60} in {opened.place}", bool(step)
    )


def _no_target(target: str, verb: str) -> None:
    if target:
        raise InvalidInput(
            f"{verb} of a job takes one argument, since its cluster knows where its steps go; a directory is "
            "written with a slash, as in ./checkpoints"
        )


def _finish(outcomes: list[Outcome], as_json: bool, nothing: str, every: bool = True) -> None:
    """every: one failure fails the command; else one success is enough. Raises PermanentError where there was
    nothing to do it with."""
    if as_json:
        screen.emit([outcome.document() for outcome in outcomes])
    tried = [outcome for outcome in outcomes if outcome.ended is not Ended.PASSED_OVER]
    if not tried:
        raise PermanentError(nothing)
    failed = [outcome for outcome in tried if not outcome.good]
    if failed and (every or len(failed) == len(tried)):
        raise typer.Exit(1)


def _line(outcome: Outcome, done: str) -> Text:
    marks = {Ended.FAILED: ("✗ ", "bold red"), Ended.PASSED_OVER: ("- ", "yellow")}
    line = Text(*marks.get(outcome.ended, ("✓ ", "green")))
    line.append(f"step {steps.name_of(outcome.copy)} ", style="default")
    match outcome.ended:
        case Ended.DONE:
            line.append(screen.clean(done), style="default")
            line.append(
                f"  {size(outcome.moved)} of {size(outcome.copy.size)} sent in {screen.span(outcome.seconds)}"
                if outcome.moved < outcome.copy.size
                else f"  {size(outcome.copy.size)} in {screen.span(outcome.seconds)}",
                style="dim",
            )
        case Ended.UNCHANGED:
            line.append(screen.clean(f"{done} already"), style="default")
        case Ended.PASSED_OVER:
            line.append_text(steps.state_word(outcome.copy.state)).append(
                f", passed over: {screen.clean(outcome.reason)}", style="dim"
            )
        case Ended.FAILED:
            line.append(screen.clean(outcome.reason), style="default")
    return line
