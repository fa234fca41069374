"""`planaria checkpoints pin` and `unpin`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from planaria.cli import checkpoint_jobs, checkpoint_places, options, screen
from planaria.cli.checkpoint_options import JobName, PlaceText
from planaria.cli.checkpoint_places import Job, open_store
from planaria.cli.orders import person
from planaria.core import pins
from planaria.core.errors import InvalidInput
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy

app = typer.Typer()

Step = Annotated[int, typer.Argument(metavar="STEP", min=0, help="The step's number.", show_default=False)]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; it stands in the list.", show_default=False)
]


@app.command("pin")
def pin(
    place: PlaceText,
    step: Step,
    reason: Reason = "",
    job: JobName = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Keep a step, whatever retention says, until `planaria checkpoints unpin`.

    In a directory or a bucket the pin lies beside the step's files and holds for that copy. Of a job it
    stands in the ledger and holds for all copies of the step.

    Example: planaria checkpoints pin s3://my-bucket/checkpoints/gpt 4000 --reason "best on the eval set"
    """
    _set(place, step, reason, job, as_json, cluster, folder, aws)


@app.command("unpin")
def unpin(
    place: PlaceText,
    step: Step,
    job: JobName = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Let retention decide about a step again.

    Example: planaria checkpoints unpin /fsx/ada/gpt 4000
    """
    _set(place, step, None, job, as_json, cluster, folder, aws)


def _set(
    text: str,
    step: int,
    reason: str | None,
    job: str,
    as_json: bool,
    cluster: str,
    folder: Path | None,
    aws: bool,
) -> None:
    """reason: None takes the pin off."""
    where = checkpoint_places.parse(text)
    new = None if reason is None else pins.pinned(reason, person(), time.time())
    if isinstance(where, Job):
        of = checkpoint_jobs.known(where.job_id, cluster, folder, aws)
        told = checkpoint_jobs.pin(of, step, new)
    else:
        opened = open_store(where, job)
        copies = [copy for copy in opened.store.steps() if copy.step == step]
        if not copies:
            raise InvalidInput(
                f"there is no step {step} in {opened.place}; `planaria checkpoints list` shows them"
            )
        for copy in copies:
            _one(opened.store, copy, new)
        told = ", ".join(copy.place for copy in copies)
    if as_json:
        screen.emit({"step": step, "pinned": new.reason if new else None, "where": told})
    else:
        screen.say(f"Step {step} is {'pinned' if new else 'not pinned any more'}: {told}.", stderr=False)


def _one(store: Any, copy: StepCopy, new: Pin | None) -> None:
    if new is None:
        store.unpin(copy)
    else:
        store.pin(copy, new)
