"""Explanations (core/explain.py) for scripts and for people."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from planaria.cli import screen

Document = dict[str, Any]
KEYS = ("parse", "fault", "catalog", "decision", "judgement")
_TIMES = frozenset({"deadline", "starts_at", "ends_at"})


def iso(at: object) -> str | None:
    """As screen.iso, and None for a time that no calendar has: events may say anything."""
    try:
        return screen.iso(at)
    except (ValueError, OverflowError, OSError):
        return None


def readable(document: Mapping[str, Any]) -> Document:
    """The document with its times in ISO 8601."""
    made = dict(document)
    made["parse"] = {**made["parse"], "time": iso(made["parse"]["time"])}
    if made["fault"] is not None:
        made["fault"] = {**made["fault"], "deadline": iso(made["fault"]["deadline"])}
    return made


def block(title: Text, document: Mapping[str, Any]) -> Group:
    """One signal for people; document: as `readable` returns it."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True, min_width=8)
    facts.add_column(overflow="fold")
    parse, fault, entry = document["parse"], document["fault"], document["catalog"]
    decision, judgement = document["decision"], document["judgement"]

    facts.add_row("parse", _parse(parse))
    for name, value in parse["evidence"].items():
        if value not in (None, "", [], {}):
            facts.add_row("", Text(f"{name}: {iso(value) if name in _TIMES else value}", style="dim"))
    if fault is not None:
        facts.add_row("fault", _fault(fault))
    if entry is not None:
        _answer(facts, "rule", entry["rule"], entry)
    if entry is None or (decision["rule"], decision["action"]) != (entry["rule"], entry["action"]):
        _answer(facts, "decision", decision["rule"], decision)
    elif decision["reason"] != entry["reason"]:
        facts.add_row("decision", Text(decision["reason"]))
    facts.add_row("outcome", _outcome(judgement))
    return Group(title, facts, Text(""))


def _parse(parse: Mapping[str, Any]) -> Text:
    words = [parse["kind"], parse["code"], parse["node_id"] or "no node named"]
    words += [f"seen {parse['time']}"] if parse["time"] else []
    words += [word for word in ("healthy", "injected", "replay") if parse[word]]
    words += [parse["invalid"]] if parse["invalid"] else []
    return Text(" · ".join(word for word in words if word))


def _fault(fault: Mapping[str, Any]) -> Text:
    sure = "sure by itself" if fault["confidence"] >= 1 else "one observer's word"
    words = [
        f"{fault['kind']} {fault['code']}".strip(),
        fault["severity"],
        f"seen by {fault['detector']}",
        sure,
    ]
    words += [f"gone by {fault['deadline']}"] if fault["deadline"] else []
    for name in ("pci", "place", "cause", "job_id"):
        words += [f"{name} {fault[name]}"] if fault.get(name) else []
    return Text(" · ".join(words))


def _answer(facts: Table, name: str, rule: str, answer: Mapping[str, Any]) -> None:
    facts.add_row(name, Text(f"{rule}: {answer['action'] or 'nothing is weighed'}", style="bold"))
    facts.add_row("", Text(answer["reason"]))
    if answer["sources"]:
        facts.add_row("", Text(f"sources: {'; '.join(answer['sources'])}", style="dim"))


def _outcome(judgement: Mapping[str, Any]) -> Text:
    text = screen.word(judgement["outcome"])
    does = [
        word
        for key, word in (
            ("raises", "supersedes the active session"),
            ("cancels", "cancels the active session"),
            ("tells_gone", "the instance is gone"),
        )
        if judgement[key]
    ]
    return text.append(
        f" in mode {judgement['mode']}" + "".join(f"; {word}" for word in does), style="not bold"
    )
