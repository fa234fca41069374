"""What Planaria keeps of a job: a token in AdminComment, which survives a requeue.

attempt     the attempt of ours that was asked for last
nodes       its nodes in the order of their ranks, with commas between them
restart     how often Slurm had restarted the job before this attempt was released
from        its restarts when the attempt was asked for
released    when it was let start (epoch seconds); launches: how often
required, excluded   the user's own --nodelist and --exclude, of each component, with `|` between them
signalled   when we began to stop it; at: its restarts then; steps: 1 where steps were signalled, else 0
job         the id under which the ledger knows it, where it was submitted again

Other programs of a site may write AdminComment, too, and the token is gone then: a copy lies with the locks.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from planaria.slurm import alone, marks
from planaria.slurm.jobs import ENDED, Job
from planaria.slurm.programs import Slurm


def remember(slurm: Slurm, job: Job, changes: Mapping[str, str | None]) -> None:
    """Set these fields of the token; None takes one away. Everything else in AdminComment stays."""
    mark = {name: value for name, value in {**job.mark, **changes}.items() if value is not None}
    comment = marks.write(job.head.admin_comment, mark)
    if comment != job.head.admin_comment:
        slurm.ask("scontrol", "update", f"JobId={job.target}", f"AdminComment={comment}")
    _write(_copy(job), {"who": _who(job), "mark": mark})


def recall(slurm: Slurm, job: Job) -> bool:
    """Put back a token that somebody has written over. True where it was: the job must be read again."""
    if job.mark or job.state in ENDED:
        return False
    try:
        kept = json.loads(_copy(job).read_text(encoding="utf-8"))
        known = kept["who"] == _who(job) and int(kept["mark"].get("restart") or 0) <= job.head.restarts
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    if known and kept["mark"]:
        remember(slurm, job, kept["mark"])
    return bool(known and kept["mark"])


def number(job: Job, name: str) -> int:
    """A whole number of the token, 0 where it has none."""
    value = job.mark.get(name, "")
    return int(value) if value.isdigit() else 0


def _copy(job: Job) -> Path:
    return alone.file(f"{job.target}.mark")


def _who(job: Job) -> list[str]:
    """Ids begin anew where Slurm has lost its state; another user's job, or another name, is another job."""
    return [job.head.user, job.head.name]


def _write(place: Path, document: Mapping[str, object]) -> None:
    scratch = place.with_suffix(".new")
    scratch.write_text(json.dumps(document), encoding="utf-8")
    os.replace(scratch, place)
