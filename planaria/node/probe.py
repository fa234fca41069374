"""What every probe has in common."""

from typing import Any, Protocol

NODE_SIGNAL = "Planaria Node Signal"
NODE_READY = "Planaria Node Ready"
JOB_SIGNAL = "Planaria Job Signal"


class Probe(Protocol):
    """One thing that is looked at, in one small module.

    detail_type: of every event this probe causes. poll(now) returns at once with the details of what is
    new since the last poll, mostly nothing; now is in seconds since the epoch. The agent adds who, when and
    in which order. A probe that cannot see raises or says so; it never guesses.
    """

    detail_type: str

    def poll(self, now: float) -> list[dict[str, Any]]: ...
