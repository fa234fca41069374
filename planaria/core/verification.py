"""How a node is verified before it works again: which check, and how long it may take.

The light check (seconds) asks whether everything is there, the deep check (up to hours, on an isolated node)
whether it works under load. catalog/verification.csv says by kind and code of a fault which one proves that
a repair has cured it, and whether the machine itself is to blame for it (core/quarantine.py); the first row
that fits is the answer, with or without the code's qualifier.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, lru_cache

from planaria.core import history
from planaria.core.catalog import look_up, tables
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action
from planaria.core.node import NodeView
from planaria.core.policy import DeepCheck, Policy
from planaria.core.table import Row

FILE = "verification.csv"
COLUMNS = "kind,code,suite,hardware,reason,sources"
DOCUMENT = "planaria-check"

LIGHT_SHARE = 1 / 15
"""Of the boot time-out: how long the light check may take, two minutes of the usual half hour. It takes some
seconds; the rest is the way there and back."""

LEAST_SECONDS = 10.0
"""No answer is called overdue before that, however short the policy's times are scaled."""


class Suite(StrEnum):
    LIGHT = "light"
    DEEP = "deep"


@dataclass(frozen=True, slots=True)
class Proof:
    """What proves that a fault is cured. hardware: the machine is to blame, not the software on it."""

    suite: Suite
    hardware: bool
    reason: str
    sources: str


@dataclass(frozen=True, slots=True)
class Times:
    """answer: seconds from asking until a check that has not answered hangs. reach: seconds in which a check
    that could not be run is asked for again and again."""

    answer: float
    reach: float


def proof_of(kind: str, code: str) -> Proof:
    """Total: there is one for any text."""
    return _proof_of(kind, code)


def suite_of(kind: str, code: str, action: Action, policy: Policy, spare: bool = False) -> Suite:
    """The check of the node that an incident gives back to work.

    kind, code: of the incident's fault. action: what the incident does; REPLACE and DRAIN bring another
    machine, which has nothing of the old one's fault. spare: it comes from the warm pool, where it was
    checked in its rotation: a deep check would take the hours that a spare is there to save.
    """
    if spare or policy.deep_check is DeepCheck.NEVER:
        return Suite.LIGHT
    if policy.deep_check is DeepCheck.ALWAYS:
        return Suite.DEEP
    return proof_of(kind, code).suite if action in (Action.RESET, Action.REBOOT) else Suite.LIGHT


def suite_for(row: Row, policy: Policy, spare: bool = False) -> Suite:
    """The same for the incident on this node's row; what else was seen on the node about that time counts as
    well, for the repair was to cure all of it."""
    fault, action = row.get("fault") or {}, Action(row["action"])
    faults = {(str(fault.get("kind", "")), str(fault.get("code", "")))}
    view, since = NodeView.from_row(row), float(row.get("opened_at") or 0.0) - policy.confirmation_seconds
    repaired = view.act_at("reset", "reboot")
    for seen in history.entries(view, since):
        asks = look_up(seen.kind, seen.code, view.family, policy.catalog).action is not Action.MONITOR
        if asks and (repaired is None or seen.last <= repaired):
            faults.add((seen.kind, seen.code))
    suites = {suite_of(kind, code, action, policy, spare) for kind, code in faults}
    return Suite.DEEP if Suite.DEEP in suites else Suite.LIGHT


def times_of(suite: Suite, policy: Policy) -> Times:
    """A node that cannot be asked is not failed: it is asked for as long as a boot may take."""
    light = max(LEAST_SECONDS, policy.boot_timeout_seconds * LIGHT_SHARE)
    answer = policy.deep_check_timeout_seconds if suite is Suite.DEEP else light
    return Times(answer, max(answer, policy.boot_timeout_seconds))


def of_hardware(row: Row) -> bool:
    """The fault of this node's newest incident is the machine's own."""
    fault = row.get("fault") or {}
    return proof_of(str(fault.get("kind", "")), str(fault.get("code", ""))).hardware


@lru_cache(maxsize=1024)
def _proof_of(kind: str, code: str) -> Proof:
    bare = code.partition("/")[0]
    for known, pattern, proof in proofs():
        if known in (kind, "*") and (fnmatchcase(code, pattern) or fnmatchcase(bare, pattern)):
            return proof
    raise AssertionError(f"{FILE} ends with *,*")


@cache
def proofs() -> tuple[tuple[str, str, Proof], ...]:
    """(kind, code pattern, proof) of every row, in the order in which they are tried."""
    return tuple(proofs_of(FILE, tables.text(FILE)))


def proofs_of(name: str, content: str) -> Iterable[tuple[str, str, Proof]]:
    """Raises InvalidInput that names file, line and rule."""
    rows, last = [], ("", "")
    for where, row in tables.rows_of(name, content, COLUMNS):
        if not all(row.values()):
            raise InvalidInput(f"{where}: no field may be empty")
        if row["suite"] not in set(Suite):
            raise InvalidInput(f"{where}: suite must be one of {', '.join(Suite)}, not {row['suite']!r}")
        if row["hardware"] not in ("yes", "no"):
            raise InvalidInput(f"{where}: hardware must be yes or no, not {row['hardware']!r}")
        proof = Proof(Suite(row["suite"]), row["hardware"] == "yes", row["reason"], row["sources"])
        last = row["kind"], row["code"]
        rows.append((*last, proof))
    if last != ("*", "*"):
        raise InvalidInput(f"{name}: the last row must be *,*")
    return rows
