"""The fault catalogue: what each code means and what is done about it, as data with its sources.

The files beside this one; each row says where its answer comes from, and where sources disagree the reason
says why this answer was chosen (docs/catalog.md; columns in tables.py):

    xid.csv             NVIDIA driver, per Xid number
    xid_exceptions.csv  other answers on instance families
    gpus.csv            instance family -> GPU
    nvlink5.csv         status words of Xid 144 to 150 (planaria/core/nvlink5.py)
    sxid.csv            NVSwitch driver, per SXid number
    rules.csv           all other faults; the first that fits is the answer, `*` stands for any text

A Fault's code may carry a qualifier after a slash (`154/reset`, `terminated/requested`): what the rest of
the event says about this occurrence. Files are read once, on first use, and checked: InvalidInput names
file, line and rule.
"""

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from planaria.core.catalog import tables
from planaria.core.catalog.tables import Entry, Proof, check, severity_of, text
from planaria.core.fault import Action, Severity
from planaria.core.signal import Kind

if TYPE_CHECKING:
    from planaria.core.overrides import Override

__all__ = ["INJECTED", "WELL", "Entry", "Proof", "check", "codes", "kinds", "look_up", "probes", "text"]

WELL = "/well"
"""Qualifier of a code that its source reports to be over."""

INJECTED = "injected"
"""Qualifier of an NVLink 5 error that somebody put into the hardware to try it."""

_NO_PROBES = frozenset({"health_issue", "job", "node_ready", "agent_checkpoint_saved"})

# A condition of EKS's node monitoring agent that repeats an Xid.
_EKS_XID = re.compile(r"AcceleratedHardwareReady/NvidiaXID(\d+)Error")


def look_up(kind: str, code: str, family: str = "", overrides: "tuple[Override, ...]" = ()) -> Entry:
    """The answer for a Fault's kind and code; there is one for any text.

    family: the instance family (`p4d`), for answers that depend on the GPU. overrides: the cluster's own
    answers, which go first.
    """
    if overrides and not code.endswith(WELL):
        repeated = _EKS_XID.fullmatch(code) if kind == "node_condition" else None
        for asked in ((kind, code), ("xid", repeated[1])) if repeated else ((kind, code),):
            for override in overrides:
                if override.answers(*asked, family):
                    return _overridden(override, _look_up(kind, code, family))
    return _look_up(kind, code, family)


@cache
def kinds() -> frozenset[str]:
    """Every kind of fault that the catalogue knows."""
    return frozenset({kind for kind, _, _ in tables.rules() if kind != "*"} | {"xid", "sxid"})


@cache
def probes() -> frozenset[str]:
    """The kinds that a probe on a node may report; AWS, Kubernetes or Planaria itself tell the others."""
    return kinds() - set(Kind) - _NO_PROBES


def codes(kind: str) -> tuple[str, ...]:
    """The codes and code patterns that rules.csv has for a kind; () for numbered kinds."""
    return tuple(pattern for known, pattern, _ in tables.rules() if known == kind and pattern != "*")


def _overridden(override: "Override", entry: Entry) -> Entry:
    return replace(
        entry,
        action=override.action,
        severity=entry.severity if override.action is entry.action else severity_of(override.action),
        rule=f"override-{override.kind}-{override.code}",
        reason=override.reason,
        sources="cluster file",
    )


@lru_cache(maxsize=4096)
def _look_up(kind: str, code: str, family: str) -> Entry:
    if kind == "xid":
        return _xid(code, family)
    if kind == "sxid":
        return _sxid(code)
    if kind == "node_condition" and (match := _EKS_XID.fullmatch(code)):
        return _xid(match[1], family)
    for known, codes_, entry in tables.rules():
        if known in (kind, "*") and (codes_ in (code, "*") or ("*" in codes_ and fnmatchcase(code, codes_))):
            return entry
    raise AssertionError("rules.csv ends with *,*")


_NO_ROW = "no row of NVIDIA's table fits its status words, so the driver's own word counts"
# What the line itself says goes before the table of numbers: (action, severity, reason).
_ON_154 = {
    "none": (Action.MONITOR, Severity.INFO, "the driver says that no recovery is needed"),
    "reset": (Action.RESET, Severity.FATAL, "the driver asks for a reset of the GPU"),
    "reboot": (Action.REBOOT, Severity.FATAL, "the driver asks for a reboot of the node"),
}
_ON_NVLINK5 = {
    "reset": (
        Action.RESET,
        Severity.FATAL,
        "NVLink 5: NVIDIA's table asks for a reset of the GPU with these status words",
    ),
    "ignore": (
        Action.MONITOR,
        Severity.DEGRADED,
        "NVLink 5: NVIDIA's table has no immediate action for these status words",
    ),
    "eval154": (
        Action.MONITOR,
        Severity.DEGRADED,
        "NVLink 5: by NVIDIA's table an Xid 154 beside it says what to do; alone, the application restarts",
    ),
    "fatal": (Action.RESET, Severity.FATAL, f"NVLink 5: {_NO_ROW}: Fatal, the GPU is reset"),
    "nonfatal": (Action.MONITOR, Severity.DEGRADED, f"NVLink 5: {_NO_ROW}: Nonfatal, a person looks"),
    INJECTED: (
        Action.MONITOR,
        Severity.INFO,
        "NVLink 5: the driver marks this error as injected; somebody tries the hardware, nothing is broken",
    ),
}
_NVLINK5_SOURCES = {
    "fatal": "driver's word; nvsentinel=NONE",
    "nonfatal": "driver's word; nvsentinel=NONE",
    INJECTED: "NVIDIA Xid catalogue: WORKFLOW_NVLINK5_ERR, field injected",
}
_UNKNOWN_XID = "nvsentinel=CONTACT_SUPPORT (unknown numbers); eks-guide=an event, no repair (unknown numbers)"
_UNKNOWN_SXID = "nvsentinel=the driver's word alone counts, which this line does not have"
_NVLINK5_TABLE = "NVIDIA Xid catalogue: XID 144-150 Decode; nvlink5.csv"


def _xid(code: str, family: str) -> Entry:
    number, _, qualifier = code.partition("/")
    known = tables.xids().get(number)
    if known is None:
        reason = f"Xid {number[:40]} is not in the catalogue; observe and let a person look"
        return Entry(Action.MONITOR, Severity.INFO, "xid-unknown", reason, _UNKNOWN_XID)
    said = _ON_154.get(qualifier) if number == "154" else _ON_NVLINK5.get(qualifier)
    if said is not None:
        action, severity, reason = said
        sources = known.entry.sources
        if number != "154":
            sources = _NVLINK5_SOURCES.get(qualifier, _NVLINK5_TABLE)
        return Entry(action, severity, f"xid-{number}-{qualifier}", reason, sources)
    if family:
        if exception := tables.exceptions().get((number, family)):
            return exception
        gpu, product = tables.gpus().get(family, ("", ""))
        if product and product not in known.products and known.entry.action is not Action.MONITOR:
            reason = f"NVIDIA gives Xid {number} no meaning on {gpu}; observe and let a person look"
            return replace(
                known.entry,
                action=Action.MONITOR,
                severity=Severity.DEGRADED,
                rule=f"xid-{number}-not-on-{product.lower()}",
                reason=reason,
            )
    return known.entry


def _sxid(code: str) -> Entry:
    number, _, word = code.partition("/")
    known = tables.sxids().get(number)
    rule = f"sxid-{number}" if known is not None else "sxid-unknown"
    if word == "fatal":
        reason = "the NVSwitch driver calls this occurrence fatal; the fabric is down until the node reboots"
        return Entry(Action.REBOOT, Severity.FATAL, rule, reason, "driver's word; nvsentinel=CONTACT_SUPPORT")
    if word == "nonfatal":
        reason = "the NVSwitch driver calls this occurrence non-fatal; its word goes before the table"
        return Entry(Action.MONITOR, Severity.DEGRADED, rule, reason, "driver's word; nvsentinel=NONE")
    if known is not None:
        return known.entry
    reason = f"SXid {number[:40]} is not in the catalogue; observe and let a person look"
    return Entry(Action.MONITOR, Severity.INFO, rule, reason, _UNKNOWN_SXID)
