"""What the judge must know about a node: a read-only view of its row in the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ACTIVE_PHASES = frozenset({"CLAIMED", "RUNNING"})

DESTRUCTIVE = ("reset", "reboot", "stop", "terminate")
"""Acts on the node itself. A launch of its replacement is recorded beside them and destroys nothing."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """Every field is the row's attribute of the same name; absent ones have these defaults.

    state: EC2's word. phase: None while the node never had a session. action, fault_kind, fault_code,
    detected_at (when the fault was seen), opened_at, claim_id (the event that claimed): of the newest
    session. acts: our own recorded acts, name -> epoch seconds. ended_at: epoch seconds of the last end.
    ready_at, check_passed and boot_id: the agent's report after the newest boot.
    gone: the ledger has taken notice that the instance is terminated.
    isolated: an isolation of ours stands (or did, when the scheduler was last asked).
    opted_out: the instance has the tag that tells Planaria to leave it alone.
    recent, subjects: what was seen on the node lately (core/history.py); has_history: the row has them.
    tried: by act, the newest one that was done to it and for which fault: {"reboot": {"at": epoch seconds,
    "kind": str, "code": str, "result": see core/ladder.py}}. openings: when its newest incidents that acted
    on it were opened. replacements: when its scheduler name got a new instance, also one that was lost;
    moves: when it got one for a rebalance recommendation. planned: ends that wait for their time
    (core/planned.py).
    """

    node_id: str
    managed: bool = True
    name: str = ""
    group: str = ""
    instance_type: str = ""
    state: str = ""
    lifecycle: str = ""
    launched_at: float | None = None
    reservation: str = ""
    job_id: str | None = None
    session: int | None = None
    claim_id: str = ""
    phase: str | None = None
    action: str | None = None
    fault_kind: str = ""
    fault_code: str = ""
    detected_at: float | None = None
    opened_at: float | None = None
    acts: Mapping[str, float] = field(default_factory=dict)
    ended_at: float | None = None
    gone: bool = False
    isolated: bool = False
    replaced_by: str = ""
    ready_at: float | None = None
    check_passed: bool = False
    boot_id: str = ""
    opted_out: bool = False
    has_history: bool = False
    recent: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    subjects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tried: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    openings: tuple[float, ...] = ()
    replacements: tuple[float, ...] = ()
    moves: tuple[float, ...] = ()
    planned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "NodeView":
        """A row that does not say that it is managed is not: nobody may lose a node by a half-written row."""
        acts = row.get("acts")
        session = _number(row.get("session"))
        return cls(
            node_id=_text(row.get("node_id")),
            managed=row.get("managed") is True,
            name=_text(row.get("name")),
            group=_text(row.get("group")),
            instance_type=_text(row.get("instance_type")),
            state=_text(row.get("state")),
            lifecycle=_text(row.get("lifecycle")),
            launched_at=_number(row.get("launched_at")),
            reservation=_text(row.get("reservation")),
            job_id=_text(row.get("job_id")) or None,
            session=None if session is None else int(session),
            claim_id=_text(row.get("claim_id")),
            phase=_text(row.get("phase")) or None,
            action=_text(row.get("action")) or None,
            fault_kind=_text(row.get("fault_kind")),
            fault_code=_text(row.get("fault_code")),
            detected_at=_number(row.get("detected_at")),
            opened_at=_number(row.get("opened_at")),
            acts=_times(acts) if isinstance(acts, Mapping) else {},
            ended_at=_number(row.get("ended_at")),
            gone=row.get("gone") is True,
            isolated=bool(row.get("isolation")),
            replaced_by=_text(row.get("replaced_by")),
            ready_at=_number(row.get("ready_at")),
            check_passed=_passed(row.get("check")),
            boot_id=_text(row.get("boot_id")),
            opted_out=row.get("opted_out") is True,
            has_history=isinstance(row.get("recent"), Mapping),
            recent=_maps(row.get("recent")),
            subjects=_maps(row.get("subjects")),
            tried=_maps(row.get("tried")),
            openings=_moments(row.get("openings")),
            replacements=_moments(row.get("replacements")),
            moves=_moments(row.get("moves")),
            planned=_plans(row.get("planned")),
        )

    @property
    def active(self) -> bool:
        """A session is under way."""
        return self.phase in ACTIVE_PHASES

    @property
    def over(self) -> bool:
        """The instance is not coming back: known to be terminated, its place taken by a replacement, or
        removed by our own session. (RETIRED without a termination is a node that a person isolated.)"""
        removed = self.phase == "RETIRED" and "terminate" in self.acts
        return self.gone or bool(self.replaced_by) or removed

    @property
    def family(self) -> str:
        """The instance family, `p5` of `p5.48xlarge`; "" when the type is not known."""
        return self.instance_type.partition(".")[0]

    def act_at(self, *names: str) -> float | None:
        """The newest of these recorded acts, None when there is none."""
        if not self.acts:
            return None
        return max((at for name, at in self.acts.items() if name in names), default=None)

    def destroyed_at(self) -> float | None:
        """The newest destructive act of the active session, None when there is none."""
        at = self.act_at(*DESTRUCTIVE)
        return at if at is not None and (self.opened_at is None or at >= self.opened_at) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    """Finite numbers only: no table holds any other."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        return None
    return float(value)


def _times(acts: Mapping[Any, Any]) -> dict[str, float]:
    times = {str(name): _number(at) for name, at in acts.items()}
    return {name: at for name, at in times.items() if at is not None}


def _passed(check: object) -> bool:
    return isinstance(check, Mapping) and check.get("passed") is True


def _maps(value: object) -> dict[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): entry for name, entry in value.items() if isinstance(entry, Mapping)}


def _plans(value: object) -> dict[str, Mapping[str, Any]]:
    """Those that have all their times."""
    times = ("deadline", "latest", "said_at", "at")
    entries = _maps(value).items() if value else ()
    return {key: entry for key, entry in entries if all(_number(entry.get(n)) is not None for n in times)}


def _moments(value: object) -> tuple[float, ...]:
    found = map(_number, value) if isinstance(value, list | tuple) else ()
    return tuple(at for at in found if at is not None)
