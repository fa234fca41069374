"""What became of one step that was to be copied."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planaria.cli import checkpoint_steps as steps
from planaria.core.saved_step import StepCopy


class Ended(StrEnum):
    """UNCHANGED: it was there already. PASSED_OVER: it is not to be copied."""

    DONE = "done"
    UNCHANGED = "unchanged"
    PASSED_OVER = "passed over"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """copy: the step where it comes from. place: where it is now. moved: bytes that were sent, the others
    were there. stops: no other step is to be tried, since it would meet the same."""

    copy: StepCopy
    ended: Ended
    reason: str = ""
    place: str = ""
    moved: int = 0
    seconds: float = 0.0
    stops: bool = False

    @property
    def good(self) -> bool:
        return self.ended in (Ended.DONE, Ended.UNCHANGED)

    def document(self) -> dict[str, Any]:
        return {
            "step": self.copy.step,
            "outcome": self.ended.value,
            "reason": self.reason,
            "from": self.copy.place,
            "place": self.place or None,
            "bytes": self.copy.size,
            "moved": self.moved,
            "seconds": round(self.seconds, 3),
            "lineage": steps.lineage_document(self.copy.lineage),
        }
