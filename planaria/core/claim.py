"""What a claimant writes on a node's row, and which attributes a new session inherits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planaria.core.table import Changes, Condition

# What belongs to one session and must not leak into the next fresh one.
SESSION_ATTRIBUTES = (
    "launch",
    "waiting",
    "execution_arn",
    "checkpoint",
    "replacement_id",
    "outcome_reason",
    "isolation_asked",
    "isolation_refused",
    "stopped_jobs",
    "supersedes",
    "replacements_lost",
    "admitted_by_breaker",
    "held_since",
    "held_reason",
    "approval",
    "closing",
    "cancelling",
    "capacity_since",
    "capacity_tries",
    "capacity_at",
    "continued",
    "verifying",
    "resetting",
    "climbed",
)

# What a superseding session must come to by itself; all else of its predecessor it takes over.
RAISED_ATTRIBUTES = (
    "waiting",
    "execution_arn",
    "isolation_refused",
    "admitted_by_breaker",
    "approval",
    "verifying",
    "resetting",
    "climbed",
)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claimant writes. machine: the state machine that does it; verb: a person's word, else "".
    claim_id: event id or execution id, the same on every retry.
    facts: what the event says of the node itself; known only together with the claim, since a node noted as
    gone before its claim would make the event's redelivery stale. when: what else must still be true of the
    row that the decision rests on.
    """

    node_id: str
    claim_id: str
    action: str
    reason: str
    rule: str
    mode: str
    detected_at: float
    fault: Mapping[str, Any] = field(default_factory=dict)
    machine: str = "heal_node"
    verb: str = ""
    facts: Changes = field(default_factory=dict)
    when: Condition | None = None
