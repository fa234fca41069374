"""`planaria checkpoints prune`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from planaria.cli import checkpoint_jobs, checkpoint_places, options, screen
from planaria.cli.bars import Bars
from planaria.cli.checkpoint_fates import document, fates_of, show
from planaria.cli.checkpoint_options import JobName, PlaceText
from planaria.cli.checkpoint_places import Bucket, Job, Opened, open_store
from planaria.core import retention
from planaria.core.checkpoint_policy import Retention
from planaria.core.errors import InvalidInput
from planaria.core.retention import Plan, Pruned
from planaria.core.saved_step import StepCopy, StepState, Tier

app = typer.Typer()
HOUR = 3600.0
NO_RULE = "say what stays: --keep 3, --keep-hours 48, --keep-every 5000, or several of them"

Keep = Annotated[
    int | None, typer.Option("--keep", min=1, metavar="N", help="The newest N stay.", show_default=False)
]
KeepHours = Annotated[
    float,
    typer.Option(
        "--keep-hours",
        min=0,
        metavar="H",
        help="What was saved in the last H hours stays.",
        show_default=False,
    ),
]
KeepEvery = Annotated[
    int,
    typer.Option(
        "--keep-every",
        min=0,
        metavar="N",
        help="Steps whose number is a multiple of N stay.",
        show_default=False,
    ),
]
DurableIn = Annotated[
    str,
    typer.Option(
        "--durable-in",
        metavar="S3URL",
        help="Of a directory: only steps that are durable there count, and only those may go.",
        show_default=False,
    ),
]
Local = Annotated[
    bool,
    typer.Option(
        "--local", help="Of a directory: these are the only copies, and complete ones count as durable."
    ),
]
Unfinished = Annotated[
    float | None,
    typer.Option(
        "--unfinished-hours",
        min=1,
        metavar="H",
        help="Also what saves and uploads left unfinished and nobody has touched for H hours.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Remove it; without this it is only shown.")]


@app.command("prune")
def prune(
    place: PlaceText,
    keep: Keep = None,
    keep_hours: KeepHours = 0.0,
    keep_every: KeepEvery = 0,
    durable_in: DurableIn = "",
    local: Local = False,
    unfinished_hours: Unfinished = None,
    yes: Yes = False,
    job: JobName = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Show which steps would go, and why each of the others stays; with --yes remove them.

    A step stays where any rule keeps it. Only durable steps count: with --keep 1, a newer step that is still
    being written or copied does not push out the last one that is safe. The newest durable step, the one a
    resume would take, what is being written and what is pinned never go, whatever the rules say.

    Of a job, its copies in S3, by the rules of the cluster file where none is given.

    Example: planaria checkpoints prune /fsx/ada/gpt --keep 2 --durable-in s3://my-bucket/checkpoints/gpt
    """
    where = checkpoint_places.parse(place)
    rules: Retention | None = Retention(keep or 0, keep_hours * HOUR, keep_every)
    given = bool(keep or keep_hours or keep_every)
    with Bars(as_json, objects=True) as bars:
        if isinstance(where, Job):
            of = checkpoint_jobs.known(where.job_id, cluster, folder, aws)
            rules, facts = rules if given else of.rules(Tier.S3), of.facts
            opened = checkpoint_jobs.bucket_of_job(of, bars.moved)
        else:
            if not given:
                raise InvalidInput(NO_RULE)
            moved = bars.moved if isinstance(where, Bucket) else None
            opened, facts = open_store(where, job, strict=True, moved=moved), retention.Facts()
        if opened.only:
            raise InvalidInput(
                f"{opened.place} is one step: name the place above it, which holds all steps of the job"
            )
        now = time.time()
        tier = Tier.S3 if isinstance(opened.place, Bucket) else Tier.FSX
        counted = _counting(opened, durable_in, local, bars)

        def look() -> Plan:
            return retention.plan(counted(), tier, rules, now, facts)

        planned = look()
        done = retention.carry_out(look, opened.store.remove) if yes else Pruned(())
        swept: list[str] = []
        if unfinished_hours is not None:
            before = now - unfinished_hours * HOUR
            swept = opened.store.sweep(before) if yes else _unfinished(opened, before)
    fates = fates_of(planned, done)
    if as_json:
        screen.emit(document(opened, fates, swept, yes))
    else:
        show(opened, fates, swept, yes)
    if done.failed:
        raise typer.Exit(1)


def _unfinished(opened: Opened, before: float) -> list[str]:
    """What a sweep would remove."""
    found = [copy.place for copy in retention.abandoned(opened.store.steps(), before)]
    if isinstance(opened.place, Bucket):
        from planaria.aws.bucket_objects import BucketObjects

        objects = BucketObjects(checkpoint_places.s3_client(), opened.place.bucket)
        prefix = f"{opened.place.prefix}/" if opened.place.prefix else ""
        late = (upload for upload in objects.uploads(prefix) if upload.touched < before)
        found += [f"the upload of s3://{opened.place.bucket}/{upload.key}" for upload in late]
    return found


def _counting(opened: Opened, durable_in: str, local: bool, bars: Bars) -> Callable[[], list[StepCopy]]:
    """Lists the steps of a place anew with every call; what S3 has proven of them it has proven once, now."""
    if isinstance(opened.place, Bucket):
        if durable_in or local:
            raise InvalidInput(
                "--durable-in and --local are about a directory, and this place is in S3 itself"
            )
        return _listing(opened, _proven(opened, bars), own=True)
    if local and durable_in:
        raise InvalidInput(
            "--local says that there is no copy in S3, --durable-in that there is: give one of them"
        )
    if local:
        return lambda: [_as_durable(copy) for copy in opened.store.steps()]
    if not durable_in:
        raise InvalidInput(
            "a directory does not tell what is safe in S3: name the copy there with --durable-in "
            "s3://BUCKET/PREFIX, or say with --local that these are the only copies"
        )
    there = open_store(checkpoint_places.parse_bucket(durable_in), opened.job, moved=bars.moved)
    return _listing(opened, _proven(there, bars), own=False)


def _listing(opened: Opened, proven: Sequence[StepCopy], own: bool) -> Callable[[], list[StepCopy]]:
    """own: what was proven are the steps of this very place."""
    safe = {(copy.place, copy.digest): copy for copy in proven}
    if own:
        return lambda: [safe.get((copy.place, copy.digest), copy) for copy in opened.store.steps()]
    return lambda: [*opened.store.steps(), *proven]


def _proven(opened: Opened, bars: Bars) -> list[StepCopy]:
    """The copies in S3 as HeadObject tells them today: what is durable is not taken from memory."""
    copies = []
    for copy in opened.store.steps():
        if copy.usable:
            bars.begin(f"step {copy.step}", len(opened.store.manifest(copy).shards))
            copies.append(opened.store.verify(copy))
        else:
            copies.append(copy)
    return copies


def _as_durable(copy: StepCopy) -> StepCopy:
    return replace(copy, state=StepState.DURABLE) if copy.state is StepState.COMPLETE else copy
