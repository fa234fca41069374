"""What the object of a job says, and what is written to one. Pure: documents in, merge patches out.

Only metadata and the suspend field are ever written: the pod template of a Job that has started is immutable,
and a hold or an isolation needs no change of it.
"""

import calendar
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.schedulers.eks import names
from planaria.schedulers.eks.kinds import JobRef, Kind
from planaria.schedulers.eks.managed_fields import writer
from planaria.schedulers.eks.nodes import annotations, json_of, labels

Document = dict[str, Any]

BUILT_IN = ("", "kubernetes.io/job-controller", "jobset.sigs.k8s.io/jobset-controller")
TRAINER = "trainer.kubeflow.org/trainjob-controller"
OPERATOR = "kubeflow.org/training-operator"
"""Values of spec.managedBy that mean the kind's own controller."""

FOR_ATTEMPT = "KILL for attempt "
"""So begins the signal of a stop that is made for the sake of the next attempt."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """Our stop of a job. suspended_at: None while its budgets still protect it."""

    at: float
    suspended_at: float | None
    signal: str
    grace: float


@dataclass(frozen=True, slots=True)
class Workload:
    """One job as it was read."""

    job_id: str
    ref: JobRef
    document: Document

    @property
    def kind(self) -> Kind:
        return self.ref.kind

    @property
    def suspended(self) -> bool:
        return bool(_field(self.document, self.kind.suspend))

    @property
    def suspended_by_other(self) -> bool:
        """A person, say, has suspended it, and it is not for us to start it again."""
        if not self.suspended:
            return False
        stopping, (program, _) = self.stopping, writer(self.document, self.kind.suspend)
        ours = stopping is not None and stopping.suspended_at is not None
        return not ours or program not in ("", names.MANAGER)

    @property
    def completed(self) -> bool:
        return bool(self._condition(self.kind.completed) or self._condition("SuccessCriteriaMet"))

    @property
    def failed(self) -> str:
        """Why it has ended for good; "" when it has not."""
        found = self._condition(self.kind.failed) or self._condition("FailureTarget")
        return str(found.get("reason") or found.get("message") or "Failed") if found else ""

    @property
    def deleted(self) -> bool:
        return self.document["metadata"].get("deletionTimestamp") is not None

    @property
    def left_to(self) -> str:
        """Who else decides when it runs; "" when we may."""
        if names.KUEUE_QUEUE in labels(self.document):
            return f"Kueue (queue {labels(self.document)[names.KUEUE_QUEUE]})"
        spec = self.document.get("spec") or {}
        manager = str(spec.get("managedBy") or (spec.get("runPolicy") or {}).get("managedBy") or "")
        return "" if manager in (*BUILT_IN, TRAINER, OPERATOR) else manager

    @property
    def attempt(self) -> int:
        """The attempt of ours that was started last; 1 as it was submitted."""
        told = annotations(self.document).get(names.ATTEMPT, "")
        return int(told) if told.isdigit() else 1

    @property
    def stopping(self) -> Stopping | None:
        told = json_of(annotations(self.document).get(names.STOP))
        if not told:
            return None
        suspended = told.get("suspended_at")
        return Stopping(
            _number(told.get("at")),
            None if suspended is None else _number(suspended),
            str(told.get("signal", "TERM")),
            _number(told.get("grace")),
        )

    @property
    def held(self) -> tuple[tuple[str, ...], float]:
        """The names that are kept free for it, and until when (epoch seconds)."""
        told = json_of(annotations(self.document).get(names.HELD))
        listed = told.get("names")
        return tuple(map(str, listed)) if isinstance(listed, list) else (), _number(told.get("until"))

    @property
    def pods(self) -> int | None:
        """How many pods it wants at once; None when its kind does not say."""
        return self.kind.pods(self.document)

    def _condition(self, kind: str) -> Mapping[str, Any] | None:
        for each in (self.document.get("status") or {}).get("conditions") or []:
            if each.get("type") == kind and each.get("status") == "True":
                return dict(each)
        return None


def stopped(work: Workload, signal: str, grace: float, now: float, suspend: bool) -> Document | None:
    """The patch that notes the stop and, with `suspend`, ends the job's pods. None: it is so already, or
    someone else has suspended the job, whose pods end just so."""
    if work.suspended_by_other:
        return None
    before = work.stopping
    new = (
        before is None
        or (before.suspended_at is not None and not work.suspended)
        or (before.signal.startswith(FOR_ATTEMPT) and before.signal != signal)
    )
    told = {
        "at": now if before is None or new else before.at,
        "signal": signal,
        "grace": grace,
        "suspended_at": None if before is None or new else before.suspended_at,
    }
    patch: Document = {}
    if suspend and not work.suspended:
        told["suspended_at"] = now
        patch = _nested(work.kind.suspend, True)
    text = _json(told)
    if annotations(work.document).get(names.STOP) != text:
        patch["metadata"] = {"annotations": {names.STOP: text}}
    return patch or None


def started(work: Workload, attempt: int, resume_step: int) -> Document:
    """The patch that starts an attempt: it runs again, and our notes of the stop and the hold are over."""
    return {
        **_nested(work.kind.suspend, False),
        "metadata": {
            "annotations": {
                names.ATTEMPT: str(attempt),
                names.RESUME_STEP: str(resume_step),
                names.STOP: None,
            }
        },
    }


def held(work: Workload, wanted: tuple[str, ...], until: float) -> Document | None:
    """The patch that notes which names are kept free for the job; none of them: nothing is, any more."""
    text = _json({"names": list(wanted), "until": until}) if wanted else None
    if annotations(work.document).get(names.HELD) == text:
        return None
    label = "true" if wanted else None
    return {"metadata": {"labels": {names.HELD: label}, "annotations": {names.HELD: text}}}


def seconds(stamp: object) -> float:
    """Epoch seconds of a Kubernetes timestamp (RFC 3339, UTC); 0.0 for none."""
    try:
        return float(calendar.timegm(time.strptime(str(stamp)[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


def _field(document: Document, path: tuple[str, ...]) -> Any:
    value: Any = document
    for name in path:
        value = (value or {}).get(name)
    return value


def _nested(path: tuple[str, ...], value: object) -> Document:
    found: Any = value
    for name in reversed(path):
        found = {name: found}
    return dict(found)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
