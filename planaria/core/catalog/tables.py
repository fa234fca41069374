"""The files of the catalogue, read and checked. Every refusal names file, line and rule."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources

from planaria.core.errors import InvalidInput
from planaria.core.fault import Action, Severity

RULES = "kind,code,severity,proof,action,rule,reason,sources"
XID = "code,name,gpus,action,reason,sources"
SXID = "code,name,severity,action,reason,sources"
EXCEPTIONS = "code,families,action,reason,sources"
GPUS = "family,gpu,catalog,sources"
PRODUCTS = ("A100", "H100", "B100", "GB200")
"""The columns of NVIDIA's Xid catalogue: the products that it says a number applies to."""


class Proof(StrEnum):
    """sure: enough for a destructive act (AWS about its own machines, the kernel's and the drivers' words,
    agents that confirm what they say). one: a single observer's word, to be confirmed by a second one."""

    SURE = "sure"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer of the catalogue. rule: stable id, such as `xid-79`; sources: where it comes from."""

    action: Action
    severity: Severity
    rule: str
    reason: str
    sources: str
    proof: Proof = Proof.SURE


@dataclass(frozen=True, slots=True)
class Numbered:
    """An Xid or SXid number. products: where NVIDIA says that the number means something; () is unknown."""

    entry: Entry
    products: tuple[str, ...] = ()


def text(name: str) -> str:
    """The content of one file of the catalogue."""
    return resources.files("planaria.core.catalog").joinpath(name).read_text(encoding="utf-8")


def rows_of(name: str, content: str, columns: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a file, each with its place for messages. Raises InvalidInput."""
    reader = csv.DictReader(content.splitlines(), strict=True)
    wanted = columns.split(",")
    if reader.fieldnames != wanted:
        raise InvalidInput(f"{name}: the first line must be {columns}")
    for row in reader:
        where = f"{name} line {reader.line_num}"
        if None in row or None in row.values():
            raise InvalidInput(f"{where}: must have {len(wanted)} fields (quote a field that holds a comma)")
        yield where, row


def check(name: str, content: str, columns: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a file whose rows are answers: code, action, reason and sources. Raises InvalidInput."""
    for where, row in rows_of(name, content, columns):
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
    """(kind, code pattern, answer) in file order. Raises InvalidInput."""
    rules: list[tuple[str, str, Entry]] = []
    for where, row in check(name, content, RULES):
        if not row["rule"]:
            raise InvalidInput(f"{where}: rule is empty")
        if row["proof"] not in set(Proof):
            raise InvalidInput(f"{where}: proof must be sure or one, not {row['proof']!r}")
        entry = Entry(
            Action(row["action"]),
            Severity(row["severity"]),
            row["rule"],
            row["reason"],
            row["sources"],
            Proof(row["proof"]),
        )
        rules.append((row["kind"], row["code"], entry))
    if not rules or rules[-1][:2] != ("*", "*"):
        raise InvalidInput(f"{name}: the last rule must be *,* so that every fault has an answer")
    return rules


def numbered(name: str, content: str, columns: str) -> dict[str, Numbered]:
    """Answers by number, of xid.csv and sxid.csv. Raises InvalidInput."""
    answers: dict[str, Numbered] = {}
    prefix = name.removesuffix(".csv")
    for where, row in check(name, content, columns):
        code, action = _number(where, row), Action(row["action"])
        if code in answers:
            raise InvalidInput(f"{where}: code {code} stands there twice")
        severity = Severity(row["severity"]) if "severity" in row else severity_of(action)
        named = f"{row['name']}: {row['reason']}" if row["name"] else row["reason"]
        products = tuple(row.get("gpus", "").split())
        for product in products:
            if product not in PRODUCTS:
                raise InvalidInput(f"{where}: gpus must be of {' '.join(PRODUCTS)}, not {product!r}")
        answers[code] = Numbered(Entry(action, severity, f"{prefix}-{code}", named, row["sources"]), products)
    return answers


def exceptions_of(name: str, content: str) -> dict[tuple[str, str], Entry]:
    """Other answers by number and instance family. Raises InvalidInput."""
    answers: dict[tuple[str, str], Entry] = {}
    for where, row in check(name, content, EXCEPTIONS):
        code, action = _number(where, row), Action(row["action"])
        families = row["families"].split()
        if not families:
            raise InvalidInput(f"{where}: families is empty")
        for family in families:
            if (code, family) in answers:
                raise InvalidInput(f"{where}: code {code} stands there twice for {family}")
            answers[code, family] = Entry(
                action, severity_of(action), f"xid-{code}-{family}", row["reason"], row["sources"]
            )
    return answers


def gpus_of(name: str, content: str) -> dict[str, tuple[str, str]]:
    """(GPU, product of NVIDIA's Xid catalogue or "") by instance family. Raises InvalidInput."""
    found: dict[str, tuple[str, str]] = {}
    for where, row in rows_of(name, content, GPUS):
        if not row["family"] or row["family"] in found:
            raise InvalidInput(f"{where}: family {row['family']!r} is empty or stands there twice")
        if row["catalog"] and row["catalog"] not in PRODUCTS:
            raise InvalidInput(f"{where}: catalog must be of {' '.join(PRODUCTS)}, not {row['catalog']!r}")
        found[row["family"]] = row["gpu"], row["catalog"]
    return found


def severity_of(action: Action) -> Severity:
    """How bad a fault is whose only description is what is done about it."""
    if action is Action.MONITOR:
        return Severity.INFO
    return Severity.DEGRADED if action is Action.DRAIN else Severity.FATAL


def _number(where: str, row: dict[str, str]) -> str:
    code = row["code"]
    if not (code.isascii() and code.isdigit()):
        raise InvalidInput(f"{where}: code must be a number, not {code!r}")
    return code


@cache
def rules() -> list[tuple[str, str, Entry]]:
    return rules_of("rules.csv", text("rules.csv"))


@cache
def xids() -> dict[str, Numbered]:
    return numbered("xid.csv", text("xid.csv"), XID)


@cache
def sxids() -> dict[str, Numbered]:
    return numbered("sxid.csv", text("sxid.csv"), SXID)


@cache
def exceptions() -> dict[tuple[str, str], Entry]:
    return exceptions_of("xid_exceptions.csv", text("xid_exceptions.csv"))


@cache
def gpus() -> dict[str, tuple[str, str]]:
    return gpus_of("gpus.csv", text("gpus.csv"))
