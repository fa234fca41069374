"""Hardware that is not to be used again: instances, and the Dedicated Hosts below them where EC2 shows those.

One row for each, `QUARANTINE#<instance or host id>`, `QUARANTINE`, listed under QUARANTINE: {"hardware": the
id, "of": "instance" | "host", "node_id", "host", "name", "instance_type", "zone", "reason", "incident_id",
"at", "until", "released": {"at", "by", "reason"}}. The node's own row has `quarantined`: {"reason", "at",
"until", "host", "incident_id"} while it stands.

An incident quarantines a piece of hardware once, so that a Task that is repeated late does not undo a
person's release. Rows stay; readers compare `until`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.core.ports import Table
from planaria.core.table import Conflict, Row, differs, exists
from planaria.core.wording import moment

KEPT_SECONDS = 30 * 86_400.0
"""How long hardware is kept out. EC2 does not tell what becomes of it; within a month AWS has repaired it or
taken it out of service, and an account's Dedicated Hosts, whose ids come back, would in the end all be barred
if it were for ever."""

REASON_LENGTH = 400


@dataclass(frozen=True, slots=True)
class Found:
    """Why hardware is quarantined, by which incident (its id) and when (epoch seconds)."""

    reason: str
    incident_id: str
    at: float


class Quarantine:
    def __init__(self, table: Table) -> None:
        self._table = table

    def put(self, row: Row, found: Found) -> None:
        """Quarantine the node of this row, and its host. Safe to repeat."""
        node, host = str(row["node_id"]), str(row.get("host") or "")
        common: dict[str, Any] = {
            "listing": "QUARANTINE",
            "node_id": node,
            "host": host,
            "name": row.get("name") or "",
            "instance_type": row.get("instance_type") or "",
            "zone": row.get("zone") or "",
            "reason": found.reason[:REASON_LENGTH],
            "incident_id": found.incident_id,
            "at": found.at,
            "until": found.at + KEPT_SECONDS,
        }
        for hardware, of in ((node, "instance"), (host, "host")):
            if hardware:
                self._put({**common, "hardware": hardware, "of": of})
        entry = self._table.get(*_key(node)) or {}
        if not stands(entry, found.at):
            return  # a person has released it, and this is a late repetition
        mark = {name: entry[name] for name in ("reason", "at", "until", "host", "incident_id")}
        self._mark(node, mark)

    def release(self, hardware: str, by: str, reason: str, now: float) -> list[str]:
        """Let it be used again, an instance together with its host if that is quarantined by this instance's
        fault; the ids that were released. Raises InvalidInput when it is not quarantined."""
        entry = self._table.get(*_key(hardware)) or {}
        if not stands(entry, now):
            raise InvalidInput(f"{hardware!r:.60} is not quarantined; `planaria quarantine` lists what is")
        node, both = str(entry["node_id"]), [hardware]
        other = entry["host"] if entry["of"] == "instance" else ""
        if other and (self._table.get(*_key(other)) or {}).get("node_id") == node:
            both.append(other)
        if entry["of"] == "instance":
            self._mark(node, None)
        word = {"at": now, "by": by, "reason": reason}
        for one in both:
            self._table.write(*_key(one), sets={"released": word}, when=exists("hardware"))
        return both

    def against(self, host: str, now: float) -> str:
        """Why a node on this Dedicated Host is not to be used, "" when nothing is against it."""
        entry = self._table.get(*_key(host)) if host else None
        return f"its host {host} is quarantined {_why(entry)}" if entry and stands(entry, now) else ""

    def all(self, now: float, ended: bool = False) -> list[Row]:
        """What stands, the newest first; `ended`: also what is released or over."""
        rows = [row for row in self._table.listing("QUARANTINE") if ended or stands(row, now)]
        return sorted(rows, key=lambda row: float(row["at"]), reverse=True)

    def _put(self, sets: Mapping[str, Any]) -> None:
        new = differs("incident_id", sets["incident_id"])
        try:
            self._table.write(*_key(sets["hardware"]), sets=sets, removes=("released",), when=new)
        except Conflict:
            return  # by this incident before

    def _mark(self, node: str, mark: Mapping[str, Any] | None) -> None:
        sets = {"quarantined": dict(mark)} if mark else None
        removes = () if mark else ("quarantined",)
        try:
            self._table.write(f"NODE#{node}", "NODE", sets=sets, removes=removes, when=exists("node_id"))
        except Conflict:
            return  # the ledger does not know the node


def stands(entry: Mapping[str, Any], now: float) -> bool:
    """A quarantine that is neither over nor released. entry: its row; {} is none."""
    return "hardware" in entry and "released" not in entry and float(entry["until"]) > now


def barred(row: Row, now: float) -> str:
    """Why the node of this row is not to be used, "" when nothing is against it."""
    mark = row.get("quarantined") or {}
    return f"it is quarantined {_why(mark)}" if mark and float(mark["until"]) > now else ""


def _why(entry: Mapping[str, Any]) -> str:
    return f"until {moment(float(entry['until']))} by incident {entry['incident_id']}: {entry['reason']}"


def _key(hardware: str) -> tuple[str, str]:
    return f"QUARANTINE#{hardware}", "QUARANTINE"
