"""Splitting the seconds from fault to first new step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

APART = ("boot", "rank_start")
"""Not the control plane's: the instance boots, and the ranks start and meet."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Epoch seconds on the way that the recovery cannot leave out, in order.

    fault: injected. detected .. joined: the incident's timeline. resume_started, resume_begun,
    checkpoint_chosen: from the history of the resume's execution. forked: the first rank's process was asked
    for. met: the last rank came out of the first collective. first_step: the new attempt's first optimizer
    step was done.
    """

    fault: float
    detected: float
    triaged: float
    begun: float
    launched: float
    ready: float
    joined: float
    resume_started: float
    resume_begun: float
    checkpoint_chosen: float
    forked: float
    met: float
    first_step: float


SEGMENTS = (
    "detect",
    "triage",
    "begin",
    "launch",
    "boot",
    "join",
    "tell_job",
    "begin_resume",
    "choose_checkpoint",
    "requeue",
    "rank_start",
    "first_step",
)
"""One per pair of neighbours in Marks."""


def split(marks: Marks) -> dict[str, float]:
    """Seconds by segment; they add up to first_step - fault.

    A mark that lies before an earlier one (EventBridge's times are whole seconds) counts as simultaneous.
    """
    cuts: list[float] = []
    for field in fields(marks):
        at = float(getattr(marks, field.name))
        cuts.append(max(at, cuts[-1]) if cuts else at)
    return {name: later - earlier for name, earlier, later in zip(SEGMENTS, cuts, cuts[1:], strict=False)}


def control_seconds(segments: Mapping[str, float]) -> float:
    """What is left without boot and rank start-up."""
    return sum(seconds for name, seconds in segments.items() if name not in APART)


@dataclass(frozen=True, slots=True)
class Beside:
    """What goes on beside the critical way, in seconds after the incident began; None = did not happen."""

    isolated: float | None
    job_stopped: float | None
    node_retired: float | None
    closed: float | None


def beside(timeline: Mapping[str, float]) -> Beside:
    begun = timeline["begun"]

    def after(step: str) -> float | None:
        return timeline[step] - begun if step in timeline else None

    return Beside(after("isolated"), after("job_stopped"), after("node_retired"), after("closed"))


def state_times(events: Sequence[Mapping[str, object]], state: str) -> tuple[float, float]:
    """(entered, exited) of a state's first visit, epoch seconds, from GetExecutionHistory's events.

    Raises KeyError when the state was not visited and left.
    """
    entered = exited = None
    for event in events:
        kind, at = str(event["type"]), event["timestamp"]
        for end in ("Entered", "Exited"):
            details = event.get(f"state{end}EventDetails")
            if (
                not kind.endswith(f"State{end}")
                or not isinstance(details, Mapping)
                or details.get("name") != state
            ):
                continue
            seconds = at.timestamp()  # type: ignore[attr-defined]  # boto3 gives datetimes
            if end == "Entered":
                entered = seconds if entered is None else entered
            else:
                exited = seconds if exited is None else exited
    if entered is None or exited is None:
        raise KeyError(f"the execution never went through {state!r}")
    return entered, exited
