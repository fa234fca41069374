"""The incidents' half of the ledger: one row per session that never expires, and its timeline, which does."""

from collections.abc import Mapping
from typing import Any

from planaria.core.incident import Phase, Step, incident_id
from planaria.core.ports import Table
from planaria.core.table import Changes, Conflict, Row, missing

TIMELINE_DAYS = 400
DAY = 86_400.0


class IncidentRows:
    """Rows `INCIDENT#<id>`, `INCIDENT` and `INCIDENT#<id>`, `STEP#<step>`."""

    table: Table

    def open_incident_row(self, row: Row) -> None:
        """The session's own row; a repeat changes nothing."""
        name = incident_id(row["node_id"], row["session"])
        sets: dict[Any, Any] = {
            "listing": "INCIDENT",
            "incident_id": name,
            **{
                key: row.get(key)
                for key in (
                    "node_id",
                    "session",
                    "claim_id",
                    "action",
                    "mode",
                    "reason",
                    "rule",
                    "fault",
                    "opened_at",
                    "detected_at",
                    "job_id",
                )
            },
        }
        try:
            self.table.write(f"INCIDENT#{name}", "INCIDENT", sets=sets, when=missing("incident_id"))
        except Conflict:
            return

    def close_incident_row(
        self,
        node: str,
        session: int,
        outcome: Phase,
        now: float,
        reason: str = "",
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        name = incident_id(node, session)
        sets: dict[Any, Any] = {
            "outcome": outcome.value,
            "closed_at": now,
            "outcome_reason": reason,
            **(extras or {}),
        }
        try:
            self.table.write(f"INCIDENT#{name}", "INCIDENT", sets=sets, when=missing("outcome"))
        except Conflict:
            return
        self.step(name, Step.CLOSED, now)

    def incident(self, name: str) -> tuple[Row | None, list[Row]]:
        """The incident's row and its timeline rows in the order of time."""
        rows = self.table.query(f"INCIDENT#{name}")
        head = next((row for row in rows if row["sk"] == "INCIDENT"), None)
        steps = [row for row in rows if row["sk"].startswith("STEP#")]
        return head, sorted(steps, key=lambda row: float(row["at"]))

    def incidents(self) -> list[Row]:
        return self.table.listing("INCIDENT")

    def step(self, name: str, step: Step, at: float, **data: Any) -> None:
        """Note when a step of an incident was done. The first note stays: a repeat is no new step."""
        sets: dict[Any, Any] = {
            "step": step.value,
            "at": at,
            "expires_at": int(at + TIMELINE_DAYS * DAY),
            **data,
        }
        try:
            self.table.write(f"INCIDENT#{name}", f"STEP#{step.value}", sets=sets, when=missing("at"))
        except Conflict:
            return

    def note_incident(self, name: str, facts: Changes) -> None:
        self.table.write(f"INCIDENT#{name}", "INCIDENT", sets=facts)
