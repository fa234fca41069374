"""Which step a resume would take, as the resume itself decides it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planaria.core import checkpoints
from planaria.core.errors import PermanentError
from planaria.core.lineage import UNKNOWN
from planaria.core.saved_step import StepCopy


@dataclass(frozen=True, slots=True)
class Chosen:
    """copy: None where a resume would take none. why: in words."""

    copy: StepCopy | None
    why: str


def chosen(
    copies: Sequence[StepCopy],
    job: str,
    aside: Mapping[str, Mapping[str, Any]] = checkpoints.NOTHING,
    starts: Mapping[int, int] = UNKNOWN,
) -> Chosen:
    """aside: of the job's row, the copies that are not used for now. starts: as lineage.line."""
    try:
        choice = checkpoints.choose_copy(copies, job, aside, starts)
    except PermanentError as error:
        return Chosen(None, str(error))
    return Chosen(choice.copy, choice.why)
