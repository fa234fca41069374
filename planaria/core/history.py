"""What was seen on a node lately, on its own row: the memory that correlation and confirmation rest on.

`recent` maps a fault's key to what is known of its repeats, `subjects` maps what a source reports about (one
metric, one condition, all of a health agent's word) to how long it has been bad and when it was last well:

    recent   {"xid|13|0000:b5:00|gpc1/tpc3": {"kind", "code", "pci", "place", "detector",
              "last": epoch seconds, "minutes": [minutes since the epoch in which it was seen]}}
    subjects {"node_condition|NetworkingReady": {"kind", "code": of the newest, "since", "last":
              epoch seconds, "well": epoch seconds of the newest healthy report}}

Both are functions of the set of times, as far as these are FRESH_SECONDS apart, so that neither order nor
repetition of deliveries changes them. A repeat within that time changes nothing: a storm's writes are few.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planaria.core.fault import Fault
from planaria.core.node import DESTRUCTIVE, NodeView
from planaria.core.occurrences import Seen
from planaria.core.table import Changes, Condition, Path, equals, missing

ENTRIES = 32
MINUTES = 32
KEPT_SECONDS = 86_400.0
FRESH_SECONDS = 30.0
FORGOTTEN_SECONDS = 7200.0
"""A source that was silent about its subject for so long begins anew, should it never say "healthy"."""

# A healthy report of these takes back one code, not everything that its source ever said.
ONE_CODE = frozenset({"scheduled_event", "status_check", "health_issue", "node_condition"})

# What is no sign of a sick node, or ends it: nothing is to be learned from its repeats.
_PASSING = frozenset(
    {"job", "node_ready", "state_change", "lifecycle", "rebalance", "unknown", "spot_interruption",
     "capacity_end", "agent_checkpoint_saved"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Note:
    """One conditional write on the node's row; Conflict means that someone noted meanwhile: read again."""

    sets: Changes
    when: Condition
    removes: tuple[Path, ...] = ()

    def onto(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row after the write, for ledgers that are no table."""
        after: dict[str, Any] = {**row, "recent": dict(row.get("recent") or {})}
        after["subjects"] = dict(row.get("subjects") or {})
        for path, value in self.sets.items():
            if isinstance(path, tuple):
                after[path[0]][path[1]] = value
            else:
                after[path] = value
        for path in self.removes:
            after[path[0]].pop(path[1], None)
        return after


def concerns(fault: Fault) -> bool:
    """Whether the fault is worth remembering."""
    return fault.kind not in _PASSING


def key(fault: Fault) -> str:
    return f"{fault.kind}|{fault.code}|{fault.pci}|{fault.place}"[:200]


def subject(kind: str, code: str) -> str:
    """What a healthy report of the same source would take back."""
    bare = code.partition("/")[0]
    # A silent node is our own finding; what HyperPod says of the node's health is another matter.
    return (f"{kind}|{bare}" if kind in ONE_CODE or bare == "silent" else kind)[:200]


def knows(node: NodeView, fault: Fault, at: float) -> bool:
    """The same fault was noted in the same minute: this signal tells nothing new."""
    entry = node.recent.get(key(fault))
    return entry is not None and int(at // 60) in entry.get("minutes", ())


def _fresh(node: NodeView, fault: Fault, at: float) -> bool:
    """It was noted so lately that to note it again would only move its last time a little."""
    return knows(node, fault, at) and at <= float(node.recent[key(fault)].get("last", 0.0)) + FRESH_SECONDS


def well_since(node: NodeView, fault: Fault) -> float | None:
    """When the fault's source last reported this subject well; None when it never did."""
    if not node.subjects:
        return None
    well = node.subjects.get(subject(fault.kind, fault.code), {}).get("well")
    return None if well is None else float(well)


def answered_at(node: NodeView) -> float:
    """The newest act on the node or end of a session of it (epoch seconds): what was seen before has had its
    answer. 0.0 without one."""
    return max(node.act_at(*DESTRUCTIVE) or 0.0, node.ended_at or 0.0)


def unhealthy_since(node: NodeView, fault: Fault, at: float) -> float:
    """Since when the fault's subject has been bad without a healthy report, whatever its reasons were; an act
    on the node and the end of a session begin it anew."""
    entry = node.subjects.get(subject(fault.kind, fault.code), {})
    since, last = _at(entry, "since"), _at(entry, "last")
    if since is None or last is None or at > last + FORGOTTEN_SECONDS:
        return at
    return min(at, max(since, answered_at(node)))


def entries(node: NodeView, horizon: float) -> list[Seen]:
    """What was seen at or after the horizon (epoch seconds)."""
    return [
        Seen(
            str(entry.get("kind", "")),
            str(entry.get("code", "")),
            str(entry.get("pci", "")),
            str(entry.get("place", "")),
            str(entry.get("detector", "")),
            last,
            tuple(entry.get("minutes", ())),
        )
        for entry in node.recent.values()
        if (last := float(entry.get("last", 0.0))) >= horizon
    ]


def unchanged_since(row: Mapping[str, Any], fault: Fault) -> Condition | None:
    """Its source has said nothing else of the fault's subject since this row was read; None when the row
    knows nothing of it. A claim that rests on a fault must not be made after the fault was taken back."""
    about = subject(fault.kind, fault.code)
    known = (row.get("subjects") or {}).get(about)
    return None if known is None else equals(("subjects", about), known)


def remember(node: NodeView, fault: Fault, at: float, healthy: bool) -> Note | None:
    """What to write about a fault or a healthy report that was seen at `at`; None when it is nothing new."""
    if not concerns(fault) or (not healthy and _fresh(node, fault, at)):
        return None
    name, about = key(fault), subject(fault.kind, fault.code)
    well = well_since(node, fault)
    if not healthy and well is not None and at < well:
        return None
    old_subject = node.subjects.get(about)
    standing = _subject(old_subject or {}, fault, at, healthy)
    recent: dict[str, Any] = {}
    removes: list[Path] = []
    if healthy:
        if old_subject == standing:
            return None
        for other, entry in node.recent.items():
            left = _after(entry, about, at)
            if left is None:
                removes.append(("recent", other))
            elif left != entry:
                recent[other] = left
    else:
        recent[name] = _entry(node.recent.get(name), fault, at)
        removes = [("recent", other) for other in _overflow(node, name, at)]
    if not node.has_history:
        return Note({"recent": recent, "subjects": {about: standing}}, missing("recent"))
    when = _unchanged("subjects", about, old_subject)
    sets: dict[Any, Any] = {("subjects", about): standing}
    for other, entry in recent.items():
        when = when & _unchanged("recent", other, node.recent.get(other))
        sets[("recent", other)] = entry
    removes += [("subjects", other) for other in _old_subjects(node, about)]
    return Note(sets, when, tuple(removes))


def noted(node: NodeView, note: Note) -> NodeView:
    """The node as it is after the note, for callers that have no row to read again."""
    after = note.onto({"recent": node.recent, "subjects": node.subjects})
    return replace(node, recent=after["recent"], subjects=after["subjects"], has_history=True)


def _unchanged(name: str, entry: str, old: Mapping[str, Any] | None) -> Condition:
    return missing((name, entry)) if old is None else equals((name, entry), old)


def _entry(old: Mapping[str, Any] | None, fault: Fault, at: float) -> dict[str, Any]:
    old = old or {}
    minutes = {*old.get("minutes", ()), int(at // 60)}
    last = max(float(old.get("last", at)), at)
    kept = sorted(minute for minute in minutes if minute * 60.0 > last - KEPT_SECONDS)[-MINUTES:]
    return {
        "kind": fault.kind,
        "code": fault.code,
        "pci": fault.pci,
        "place": fault.place,
        "detector": fault.detector,
        "last": last,
        "minutes": kept,
    }


def _subject(old: Mapping[str, Any], fault: Fault, at: float, healthy: bool) -> dict[str, Any]:
    since, last, well = (_at(old, name) for name in ("since", "last", "well"))
    if healthy:
        well = at if well is None else max(well, at)
        if since is None or last is None or last <= well:
            return {"well": well}
        # What was bad before the report is over; of what came after it, only the newest is known for sure.
        return {**old, "well": well, "since": last if since <= well else since}
    if well is not None and at <= well:
        return dict(old)
    kept = {} if well is None else {"well": well}
    if since is None or last is None or at > last + FORGOTTEN_SECONDS:
        return {**kept, "kind": fault.kind, "code": fault.code, "since": at, "last": at}
    if at < since - FORGOTTEN_SECONDS:
        return dict(old)
    code = fault.code if (at, fault.code) > (last, str(old.get("code", ""))) else old.get("code", "")
    return {**kept, "kind": fault.kind, "code": code, "since": min(since, at), "last": max(last, at)}


def _at(entry: Mapping[str, Any], name: str) -> float | None:
    value = entry.get(name)
    return None if value is None else float(value)


def _after(entry: Mapping[str, Any], about: str, well: float) -> Mapping[str, Any] | None:
    """What is left of an entry when its source reports the subject well; None when nothing is."""
    if subject(str(entry.get("kind", "")), str(entry.get("code", ""))) != about:
        return entry
    if float(entry.get("last", 0.0)) <= well:
        return None
    return {**entry, "minutes": [m for m in entry.get("minutes", ()) if m >= int(well // 60)]}


def _overflow(node: NodeView, name: str, at: float) -> list[str]:
    """Entries that are too old, and the oldest where there are too many."""
    others = sorted(
        (float(entry.get("last", 0.0)), other) for other, entry in node.recent.items() if other != name
    )
    old = [other for last, other in others if last < at - KEPT_SECONDS]
    left = [other for _, other in others if other not in old]
    return old + left[: max(0, len(left) + 1 - ENTRIES)]


def _old_subjects(node: NodeView, about: str) -> list[str]:
    times = {
        other: max(float(entry.get("well") or 0.0), float(entry.get("last") or 0.0))
        for other, entry in node.subjects.items()
        if other != about
    }
    old = sorted(times, key=lambda other: (times[other], other))
    return old[: max(0, len(old) + 1 - ENTRIES)]
