"""A cluster's own answers to faults, which go before the catalogue: the policy's `catalog` list.

    {"kind": "xid", "code": "63", "action": "REBOOT", "families": ["p4d"], "reason": "seen to recur here"}

kind is one of the catalogue's words; in code `*` stands for any text. families: instance families that it is
meant for, all where it is absent. The first that fits is the answer.

An entry is checked against the catalogue: what it does not know is refused with the nearest word it knows,
for an answer to a misspelt fault would never be given. Xid and SXid numbers may be new ones. What AWS takes
away in any case cannot be watched or rebooted, and reports that are no fault of a node have no answer to
change. An answer to everything of a kind may only weaken it, and what every node goes through or hears of
(pending, running, rebalance, Auto Scaling's notices) never costs one: its replacement would hear the same.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from planaria.core import catalog
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action
from planaria.core.override_reach import TAKEN_BACK, hides, sweeps

_NO_FAULTS = frozenset({"job", "node_ready", "agent_checkpoint_saved", "unknown"})
"""Kinds that report on jobs, boots and capacity."""

_VENDOR_WORDS = frozenset({"scheduled_event", "health_issue", "node_health", "node_condition", "lifecycle"})
"""Kinds whose codes are the words of AWS or Kubernetes, which get new ones at any time."""

_TERMINATING = "autoscaling:EC2_INSTANCE_TERMINATING"
_ENDS = (
    ("spot_interruption", "terminate"),
    ("spot_interruption", "stop"),
    ("spot_interruption", "hibernate"),
    ("capacity_end", "interruption"),
    ("capacity_end", "expiration"),
    ("state_change", "shutting-down"),
    ("state_change", "terminated"),
    ("lifecycle", _TERMINATING),
)
_ANSWERS_TO_ENDS = (Action.DRAIN, Action.REPLACE)
_ENDING_KINDS = frozenset(kind for kind, _ in _ENDS)

_STARTING = ("pending", "running")
_STATES = "stopping, stopped, shutting-down or terminated"

_NUMBERED = {"xid": "the number of an Xid", "sxid": "the number of an SXid"}
_NUMBER = re.compile(r"[0-9*?]+(/[a-z0-9*]+)?")


@dataclass(frozen=True, slots=True)
class Override:
    kind: str
    code: str
    action: Action
    reason: str
    families: tuple[str, ...] = ()

    def answers(self, kind: str, code: str, family: str) -> bool:
        """A fault's code may carry a qualifier (`154/reset`); an entry that names none is for all of them,
        except those that take the fault back."""
        if kind != self.kind or (self.families and family not in self.families):
            return False
        before, _, last = code.rpartition("/")
        if before and last in TAKEN_BACK and not self.code.endswith(f"/{last}"):
            return False
        return fnmatchcase(code if "/" in self.code else code.partition("/")[0], self.code)


def overrides_of(entries: object) -> tuple[Override, ...]:
    """The overrides of the cluster document. Raises InvalidInput that names entry, key and rule."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise InvalidInput(f"policy.catalog must be a list of answers, not {entries!r:.60}")
    found: dict[tuple[str, str, tuple[str, ...]], Override] = {}
    for number, entry in enumerate(entries):
        where = f"policy.catalog[{number}]"
        override = _override(entry, where)
        key = override.kind, override.code, override.families
        if key in found:
            raise InvalidInput(f"{where}: {override.kind} {override.code} stands there twice")
        for place, earlier in enumerate(found.values()):
            if hides(earlier, override):
                what, first = (f"{one.kind} {one.code}" for one in (override, earlier))
                raise InvalidInput(
                    f"{where}: {what} is never reached, for policy.catalog[{place}], {first}, answers all of "
                    "it before; put the narrower one first, or leave one out"
                )
        found[key] = override
    return tuple(found.values())


def _override(entry: object, where: str) -> Override:
    if not isinstance(entry, Mapping):
        raise InvalidInput(f"{where} must be an object, not {entry!r:.60}")
    for key in ("kind", "code", "reason"):
        value = entry.get(key)
        if not isinstance(value, str) or not value.strip():
            raise InvalidInput(f"{where}.{key} must be a text that is not empty, not {value!r:.60}")
    action, families = entry.get("action"), entry.get("families") or ()
    if not isinstance(action, str) or action not in Action.__members__:
        raise InvalidInput(f"{where}.action must be one of {', '.join(Action)}, not {action!r:.60}")
    if not isinstance(families, Sequence) or isinstance(families, str) or not _texts(families):
        raise InvalidInput(f"{where}.families must be a list such as [p5, p5en], not {families!r:.60}")
    override = Override(entry["kind"], entry["code"], Action(action), entry["reason"], tuple(families))
    _check_kind(override, where)
    _check_code(override, where)
    _check_notices(override, where)
    _check_sweep(override, where)
    _check_action(override, where)
    return override


def _texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def _check_kind(override: Override, where: str) -> None:
    known = sorted(catalog.kinds() - _NO_FAULTS)
    if override.kind in _NO_FAULTS:
        raise InvalidInput(
            f"{where}.kind {override.kind} is no fault of a node: there is no answer to change"
        )
    if override.kind not in known:
        hint = _nearest(override.kind, known) or f" (it has: {', '.join(known)})"
        raise InvalidInput(f"{where}.kind {override.kind!r:.70} is not in the catalogue{hint}")


def _check_code(override: Override, where: str) -> None:
    kind, code = override.kind, override.code
    if code.endswith(catalog.WELL):
        raise InvalidInput(f"{where}.code {code!r:.70} says that all is well, which has no other answer")
    if kind in _NUMBERED:
        if not _NUMBER.fullmatch(code):
            number = f"must be {_NUMBERED[kind]} such as 63, 154/reset or *"
            raise InvalidInput(f"{where}.code {number}, not {code!r:.70}")
        return
    known = catalog.codes(kind)
    if kind in _VENDOR_WORDS or not known or code == "*":
        return
    bare = code.partition("/")[0]
    for pattern in known:
        if any(fnmatchcase(one, pattern) or fnmatchcase(pattern, one) for one in (code, bare)):
            return
        if fnmatchcase(pattern.partition("/")[0], bare):
            return
    hint = _nearest(bare, list(known)) or f" (it has: {', '.join(known)}; * is any)"
    raise InvalidInput(f"{where}.code {code!r:.70} is no {kind} of the catalogue{hint}")


def _check_notices(override: Override, where: str) -> None:
    """What every node goes through or may hear of costs none."""
    kind, code, action = override.kind, override.code, override.action
    if kind == "rebalance" and action not in (Action.MONITOR, Action.DRAIN):
        raise InvalidInput(
            f"{where}.action must be MONITOR or DRAIN for rebalance, not {action}: it is a recommendation, "
            "and the node's replacement would get the next one"
        )
    if sweeps(kind, code):
        return
    if kind == "state_change":
        for state in _STARTING:
            if override.answers(kind, state, _any(override)):
                raise InvalidInput(
                    f"{where}.code must be {_STATES}, not {code!r:.70}: every node is {state} once, its "
                    "replacement too"
                )
    ends = kind != "lifecycle" or override.answers(kind, _TERMINATING, _any(override))
    if not ends and action is not Action.MONITOR:
        raise InvalidInput(
            f"{where}.action must be MONITOR for lifecycle {code:.70}, not {action}: it is a notice of Auto "
            f"Scaling's that ends nothing; what ends a node is {_TERMINATING}"
        )


def _check_sweep(override: Override, where: str) -> None:
    kind, code, action = override.kind, override.code, override.action
    if kind == "rebalance" or not sweeps(kind, code):
        return
    if kind in _ENDING_KINDS:
        ends = ", ".join(one for ending, one in _ENDS if ending == kind)
        names = _STATES if kind == "state_change" else ends
        raise InvalidInput(
            f"{where}.code must name what it answers to, not {code!r:.70}: AWS ends these nodes anyway; "
            f"write {names}, one entry for each"
        )
    if action is not Action.MONITOR:
        known = [one for one in catalog.codes(kind) if "*" not in one]
        named = f"a code such as {known[0]}" if known else "its code as `planaria triage` shows it"
        names = _NUMBERED.get(kind) or named
        raise InvalidInput(
            f"{where}.action must be MONITOR for {kind} {code:.70}, not {action}: an answer to every {kind} "
            f"can only weaken it; for {action} write {names} instead"
        )


def _check_action(override: Override, where: str) -> None:
    if override.action in _ANSWERS_TO_ENDS:
        return
    if any(kind == override.kind and override.answers(kind, code, _any(override)) for kind, code in _ENDS):
        raise InvalidInput(
            f"{where}.action must be DRAIN or REPLACE for {override.kind} {override.code}, not "
            f"{override.action}: AWS takes the instance anyway, and its job would be left without a node"
        )


def _any(override: Override) -> str:
    return override.families[0] if override.families else ""


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    return f" (is {close[0]} meant?)" if close else ""
