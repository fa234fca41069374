"""The fault catalogue: what each code means and what is done about it, as data with its sources.

Four files beside this one; each row says where its answer comes from, and where sources disagree the
reason says why this answer was chosen:

    xid.csv             code,name,gpus,action,reason,sources              NVIDIA driver, per Xid number
    xid_exceptions.csv  code,families,action,reason,sources               other answers on instance families
    sxid.csv            code,name,severity,action,reason,sources          NVSwitch driver, per SXid number
    rules.csv           kind,code,severity,action,rule,reason,sources     all other faults; first match wins,
                                                                          `*` stands for any text

A Fault's code may carry a qualifier after a slash (`154/reset`, `terminated/requested`): what the rest of
the event says about this occurrence. Files are read once, on first use, and checked: InvalidInput names
file, line and rule.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import resources

from planaria.core.errors import InvalidInput
from planaria.core.fault import Action, Severity

WELL = "/well"
"""Qualifier of a code that its source reports to be over."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer of the catalogue. rule: stable id, such as `xid-79`; sources: where it comes from."""

    action: Action
    severity: Severity
    rule: str
    reason: str
    sources: str


def text(name: str) -> str:
    """The content of one file of the catalogue."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def check(name: str, content: str, columns: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a catalogue file, each with its place for messages. Raises InvalidInput."""
    reader = csv.DictReader(content.splitlines(), strict=True)
    wanted = columns.split(",")
    if reader.fieldnames != wanted:
        raise InvalidInput(f"{name}: the first line must be {columns}")
    for row in reader:
        where = f"{name} line {reader.line_num}"
        if None in row or None in row.values():
            raise InvalidInput(f"{where}: must have {len(wanted)} fields (quote a field that holds a comma)")
        if row["action"] not in Action.__members__:
            raise InvalidInput(f"{where}: action must be one of {', '.join(Action)}, not {row['action']!r}")
        if row.get("severity", "INFO") not in Severity.__members__:
            words = ", ".join(Severity)
            raise InvalidInput(f"{where}: severity must be one of {words}, not {row['severity']!r}")
        for column in ("code", "reason", "sources"):
            if not row[column]:
                raise InvalidInput(f"{where}: {column} is empty")
        yield where, row


def rules_of(name: str, content: str) -> list[tuple[str, str, Entry]]:
    """(kind pattern, code pattern, answer) in file order. Raises InvalidInput."""
    rules: list[tuple[str, str, Entry]] = []
    for where, row in check(name, content, "kind,code,severity,action,rule,reason,sources"):
        if not row["rule"]:
            raise InvalidInput(f"{where}: rule is empty")
        entry = Entry(
            Action(row["action"]), Severity(row["severity"]), row["rule"], row["reason"], row["sources"]
        )
        rules.append((row["kind"], row["code"], entry))
    if not rules or rules[-1][:2] != ("*", "*"):
        raise InvalidInput(f"{name}: the last rule must be *,* so that every fault has an answer")
    return rules


def numbered(name: str, content: str, columns: str) -> dict[str, tuple[dict[str, str], Entry]]:
    """Answers by number, of xid.csv and its like. Raises InvalidInput."""
    answers: dict[str, tuple[dict[str, str], Entry]] = {}
    prefix = name.partition("_")[0].removesuffix(".csv")
    for where, row in check(name, content, columns):
        code, action = row["code"], Action(row["action"])
        if not code.isascii() or not code.isdigit():
            raise InvalidInput(f"{where}: code must be a number, not {code!r}")
        if code in answers:
            raise InvalidInput(f"{where}: code {code} stands there twice")
        severity = Severity(row["severity"]) if "severity" in row else severity_of(action)
        named = f"{row['name']}: {row['reason']}" if row.get("name") else row["reason"]
        answers[code] = row, Entry(action, severity, f"{prefix}-{code}", named, row["sources"])
    return answers


def severity_of(action: Action) -> Severity:
    return Severity.INFO if action is Action.MONITOR else Severity.FATAL


@cache
def _rules() -> list[tuple[str, str, Entry]]:
    return rules_of("rules.csv", text("rules.csv"))


@cache
def _xids() -> dict[str, tuple[dict[str, str], Entry]]:
    return numbered("xid.csv", text("xid.csv"), "code,name,gpus,action,reason,sources")


@cache
def _exceptions() -> dict[str, tuple[dict[str, str], Entry]]:
    columns = "code,families,action,reason,sources"
    return numbered("xid_exceptions.csv", text("xid_exceptions.csv"), columns)


@cache
def _sxids() -> dict[str, tuple[dict[str, str], Entry]]:
    return numbered("sxid.csv", text("sxid.csv"), "code,name,severity,action,reason,sources")


@lru_cache(maxsize=4096)
def look_up(kind: str, code: str, family: str = "") -> Entry:
    """The catalogue's answer for a Fault's kind and code; there is one for any text.

    family: the instance family (`p4d`), for answers that depend on the GPU.
    """
    if kind == "xid":
        return _xid(code, family)
    if kind == "sxid":
        return _sxid(code)
    for kinds, codes, entry in _rules():
        if kinds in (kind, "*") and (codes in (code, "*") or ("*" in codes and fnmatchcase(code, codes))):
            return entry
    raise AssertionError("rules.csv ends with *,*")


_VERDICTS = {
    "none": (Action.MONITOR, "the driver says that no recovery is needed"),
    "reset": (Action.RESET, "the driver asks for a reset of the GPU"),
    "reboot": (Action.REBOOT, "the driver asks for a reboot of the node"),
}


def _xid(code: str, family: str) -> Entry:
    number, _, qualifier = code.partition("/")
    if number not in _xids():
        reason = f"Xid {number[:40]} is not in the catalogue; observe and let a person look"
        return Entry(Action.MONITOR, Severity.INFO, "xid-unknown", reason, "")
    entry = _xids()[number][1]
    if number == "154" and qualifier in _VERDICTS:
        action, reason = _VERDICTS[qualifier]
        return replace(
            entry, action=action, severity=severity_of(action), rule=f"xid-154-{qualifier}", reason=reason
        )
    if qualifier == "fatal":
        reason = "NVLink 5: the driver calls this occurrence fatal; the GPU is reset"
        return replace(
            entry, action=Action.RESET, severity=Severity.FATAL, rule=f"xid-{number}-fatal", reason=reason
        )
    if family and number in _exceptions():
        row, exception = _exceptions()[number]
        if family in row["families"].split():
            return exception
    return entry


def _sxid(code: str) -> Entry:
    number, _, word = code.partition("/")
    known = number in _sxids()
    rule = f"sxid-{number}" if known else "sxid-unknown"
    if word == "fatal":
        reason = "the NVSwitch driver calls this occurrence fatal; the fabric is down until the node reboots"
        return Entry(Action.REBOOT, Severity.FATAL, rule, reason, "driver's word; nvsentinel=CONTACT_SUPPORT")
    if word == "nonfatal":
        reason = "the NVSwitch driver calls this occurrence non-fatal; its word goes before the table"
        return Entry(Action.MONITOR, Severity.DEGRADED, rule, reason, "driver's word; nvsentinel=NONE")
    if known:
        return _sxids()[number][1]
    reason = f"SXid {number[:40]} is not in the catalogue; observe and let a person look"
    return Entry(Action.MONITOR, Severity.INFO, rule, reason, "")
