"""Why a signal ends as it does: the parse, the fault, the rule with its sources, the decision, the outcome.

Pure, as the judge is, and for people and scripts alone: nothing is decided by what stands here.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from planaria.core.catalog import Entry, look_up
from planaria.core.classify import classify
from planaria.core.fault import Fault
from planaria.core.judge import Judgement, Outcome
from planaria.core.node import NodeView
from planaria.core.policy import Policy
from planaria.core.signal import Signal

UNWEIGHED = "Planaria: docs/outcomes.md"
"""Where the rules come from that ask no table: invalid, not-managed, duplicate, own-act, stale."""

_WITHOUT_FAULT = frozenset({Outcome.INVALID, Outcome.NOT_MANAGED})


@dataclass(frozen=True, slots=True)
class Explanation:
    """fault: None where nothing can be meant (INVALID, NOT_MANAGED). entry: what the catalogue, or the
    cluster's own answer, says of the fault by itself; the judgement may rest on more than that."""

    signal: Signal
    fault: Fault | None
    entry: Entry | None
    judgement: Judgement

    def document(self) -> dict[str, Any]:
        """JSON with stable keys; times are epoch seconds, sources a list.

        `parse`, `fault` (or null), `catalog` (or null), `decision`, `judgement`: docs/cli.md has their keys.
        """
        signal, judgement = self.signal, self.judgement
        parse = {
            "kind": signal.kind.value,
            "code": signal.code,
            "node_id": signal.node_id,
            "time": signal.time,
            "healthy": signal.healthy,
            "injected": signal.injected,
            "replay": signal.replay,
            "invalid": signal.invalid or None,
            "evidence": _finite(signal.evidence),
        }
        fault = None
        if self.fault is not None:
            fault = _finite({**dataclasses.asdict(self.fault), "severity": self.fault.severity.value})
        catalog = self.entry and {
            "rule": self.entry.rule,
            "action": self.entry.action.value,
            "severity": self.entry.severity.value,
            "reason": self.entry.reason,
            "sources": sources(self.entry.sources),
        }
        decision = {
            "action": judgement.action.value if judgement.action is not None else None,
            "rule": judgement.rule,
            "reason": judgement.reason,
            "sources": sources(self._sources()),
        }
        verdict = {
            "outcome": judgement.outcome.value,
            "mode": judgement.mode.value,
            "raises": judgement.raises,
            "cancels": judgement.cancels,
            "tells_gone": judgement.tells_gone,
            "job_id": judgement.job_id,
        }
        return {
            "parse": parse,
            "fault": fault,
            "catalog": catalog,
            "decision": decision,
            "judgement": verdict,
        }

    def _sources(self) -> str:
        if self.judgement.action is None:
            return UNWEIGHED
        same = self.entry is not None and self.entry.rule == self.judgement.rule
        return self.judgement.sources or (self.entry.sources if same and self.entry is not None else "")


def explain(signal: Signal, node: NodeView | None, policy: Policy, judgement: Judgement) -> Explanation:
    """node: as the judge saw it. Total: whatever could be judged can be explained."""
    if judgement.outcome in _WITHOUT_FAULT:
        return Explanation(signal, None, None, judgement)
    known = node if signal.node_id is not None else None
    fault = judgement.fault if judgement.fault is not None else classify(signal, known, policy)
    family = known.family if known is not None else ""
    return Explanation(signal, fault, look_up(fault.kind, fault.code, family, policy.catalog), judgement)


def sources(text: str) -> list[str]:
    """The sources of a row of the catalogue, which separates them by semicolons."""
    return [part.strip() for part in text.split(";") if part.strip()]


def _finite(value: Any) -> Any:
    """JSON as its standard has it: Python also reads NaN and Infinity, which nobody else can."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
