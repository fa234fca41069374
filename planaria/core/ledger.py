"""The node's half of the ledger: claims, fenced writes, closes, timelines and event outcomes.

One row per node (`NODE#<id>`, `NODE`) holds facts, the active session and its open intents, so that every
step of the claim protocol is one conditional write on one row. One row per session
(`INCIDENT#<id>`, `INCIDENT`) never expires; its timeline (`STEP#<step>`) and the events' outcomes do.
"""

from collections.abc import Sequence
from typing import Any

from planaria.core.claim import RAISED_ATTRIBUTES, SESSION_ATTRIBUTES, Claim
from planaria.core.errors import Fenced
from planaria.core.event_rows import EventRows
from planaria.core.gates import ends_anyway
from planaria.core.incident import ACTIVE, Phase, execution_name, next_session
from planaria.core.incident_rows import IncidentRows
from planaria.core.ports import Table
from planaria.core.table import Changes, Condition, Conflict, Path, Row, equals, missing, one_of

OPENINGS = 8
"""How many of a node's incidents that acted on it are remembered, to know a repeat offender."""


class Ledger(IncidentRows, EventRows):
    def __init__(self, table: Table) -> None:
        self.table = table

    # --- nodes -----------------------------------------------------------------------------------

    def node(self, node: str) -> Row | None:
        return self.table.get(*_key(node))

    def nodes_by_id(self, nodes: Sequence[str]) -> list[Row]:
        """The rows of these nodes, read together; one that is missing may yet be there."""
        return [row for row in self.table.get_many([_key(node) for node in nodes]) if "node_id" in row]

    def nodes(self) -> list[Row]:
        return self.table.listing("NODE")

    def note_node(self, node: str, facts: Changes, when: Condition | None = None) -> Row:
        """Write facts that belong to no session (what EC2 or the agent says)."""
        sets: dict[Any, Any] = {"node_id": node, "managed": True, "listing": "NODE", **facts}
        return self.table.write(*_key(node), sets=sets, when=when)

    # --- claim protocol --------------------------------------------------------------------------

    def claim(self, claim: Claim, seen: Row | None, now: float, raises: bool = False) -> Row:
        """Step 1 of the protocol. `seen` is the row that the decision rests on.

        Returns the node's row as claimed (also when an earlier try of the same claim won). Raises
        Conflict when the node changed since it was seen. With `raises` an active session of the node is
        superseded; its open intents stay in the row and so pass to the new session.
        """
        seen = seen or {}
        previous = seen.get("session")
        if seen.get("closing") and seen.get("phase") not in ACTIVE:
            self.finish_close(
                seen, now
            )  # its Task died between the two writes; after this claim nobody could
        if raises and seen.get("phase") in ACTIVE:
            free = equals("session", previous) & one_of("phase", ACTIVE)
            removes: Sequence[Path] = RAISED_ATTRIBUTES
        else:
            free = missing("session") if previous is None else equals("session", previous)
            idle = missing("phase") | one_of("phase", tuple(p.value for p in Phase if p not in ACTIVE))
            free, removes = free & idle, SESSION_ATTRIBUTES
            if seen.get("phase") == Phase.CANCELLED:
                # What the cancelled session had begun is taken over, so that nothing of it gets lost.
                removes = tuple(name for name in removes if name not in ("launch", "replacement_id"))
        session = next_session(now, previous)
        sets: dict[Any, Any] = {
            "node_id": claim.node_id,
            "managed": True,
            "listing": "NODE",
            "session": session,
            "claim_id": claim.claim_id,
            "phase": Phase.CLAIMED.value,
            "action": claim.action,
            "reason": claim.reason,
            "rule": claim.rule,
            "mode": claim.mode,
            "fault": dict(claim.fault),
            "fault_kind": claim.fault.get("kind"),
            "fault_code": claim.fault.get("code"),
            "detected_at": claim.detected_at,
            "opened_at": now,
            "opened_before": seen.get("opened_at", now),
            "attempt": 1,
            "machine": claim.machine,
            "verb": claim.verb,
            "execution": execution_name(claim.node_id, session, 1),
            **claim.facts,
        }
        if raises and seen.get("phase") in ACTIVE:
            sets["supersedes"] = {
                "session": previous,
                "execution_arn": seen.get("execution_arn", ""),
                "admitted": _let_through(seen),
                "taken": _taken(seen),
                "detector": str((seen.get("fault") or {}).get("detector", "unknown")),
            }
        key = _key(claim.node_id)
        try:
            when = free if claim.when is None else free & claim.when
            row = self.table.write(*key, sets=sets, removes=removes, when=when)
        except Conflict as conflict:
            if conflict.row is None or conflict.row.get("claim_id") != claim.claim_id:
                raise
            row = conflict.row
        self.open_incident_row(row)
        return row

    def end_superseded(self, row: Row, now: float) -> str:
        """Close the row of the session that this one superseded; its execution's ARN, "" when there is none.

        Repeated with the claim, so that a crash in between leaves no open predecessor.
        """
        old = row.get("supersedes") or {}
        if old:
            reason = f"superseded by {row['session']}"
            self.close_incident_row(row["node_id"], int(old["session"]), Phase.SUPERSEDED, now, reason)
        return str(old.get("execution_arn", ""))

    def enter(self, node: str, session: int) -> Row:
        """The node's row, if this session is still its active one; every Task begins here."""
        row = self.node(node)
        if row is None or row.get("session") != session or row.get("phase") not in ACTIVE:
            raise Fenced(f"session {session} of {node} is over")
        return row

    def write(
        self,
        node: str,
        session: int,
        sets: Changes | None = None,
        removes: Sequence[Path] = (),
        when: Condition | None = None,
    ) -> Row:
        """A write fenced by the session. Raises Fenced when it is over, Conflict when only `when` failed."""
        fence = equals("session", session) & one_of("phase", ACTIVE)
        condition = fence if when is None else fence & when
        try:
            return self.table.write(*_key(node), sets=sets, removes=removes, when=condition)
        except Conflict as conflict:
            row = conflict.row or {}
            if row.get("session") == session and row.get("phase") in ACTIVE:
                raise
            raise Fenced(f"session {session} of {node} is over") from None

    def act(self, node: str, session: int, row: Row, name: str, now: float) -> Row:
        """Record a destructive act before it is done; its effects are then recognised as ours, and the next
        fault of this kind is known to have survived it."""
        if "acts" not in row:
            row = self.write(node, session, sets={"acts": {}}, when=missing("acts"))
        sets: dict[Any, Any] = {("acts", name): now}
        if not row.get("verb"):  # what a person orders says nothing of the hardware
            kind, code = row.get("fault_kind") or "", row.get("fault_code") or ""
            pci = (row.get("fault") or {}).get("pci") or ""
            tried = {"at": now, "kind": kind, "code": code, "pci": pci}
            opened, openings = float(row.get("opened_at", now)), list(row.get("openings", []))
            sets["tried"] = {**row.get("tried", {}), name: tried}
            sets["openings"] = openings if opened in openings else [*openings, opened][-OPENINGS:]
        return self.write(node, session, sets=sets)

    def close(
        self,
        node: str,
        session: int,
        outcome: Phase,
        now: float,
        reason: str = "",
        held: Row | None = None,
        well: bool = False,
        seen: Row | None = None,
    ) -> bool:
        """End the session; False when it had ended already. The incident's row is closed in any case.

        held: its row, if the breaker refused it, so that it never was: its signal is judged anew later and
        must not be older than the end of a session. well: its source reports the node well; what other
        sources have seen before is not answered by that end. seen: close only if no act was recorded since
        this row was read, and its place is not about to be another instance's.
        """
        sets: dict[Any, Any] = {
            "phase": outcome.value, "outcome_reason": reason, "closing": True, "closed_at": now,
        }  # fmt: skip
        if held is not None:
            sets["opened_at"] = held.get("opened_before", now)
        elif well:
            sets["cancelling"] = True
        else:
            sets["ended_at"] = now
        fresh = True
        try:
            # A held session never was: the same event claims anew.
            removes = ("waiting", "claim_id") if held is not None else ("waiting",)
            row = self.write(node, session, sets=sets, removes=removes, when=_no_act_since(seen))
        except Conflict:
            return False
        except Fenced:
            row, fresh = self.node(node) or {}, False
            if row.get("session") == session and row.get("phase") in set(Phase):
                outcome = Phase(row["phase"])
        extras: dict[str, Any] = {
            key: row[key]
            for key in ("replacement_id", "job_id")
            if row.get("session") == session and key in row
        }
        self.close_incident_row(node, session, outcome, now, reason, extras)
        if row.get("session") == session:
            self._closed(node, session)
        return fresh

    def _closed(self, node: str, session: int) -> None:
        try:
            self.table.write(*_key(node), removes=("closing",), when=equals("session", session))
        except Conflict:
            return  # the next session has begun: it has taken the mark away

    def finish_close(self, row: Row, now: float) -> None:
        """Close the incident's row where a crash came between the two writes of `close`."""
        reason = str(row.get("outcome_reason", ""))
        self.close(row["node_id"], int(row["session"]), Phase(row["phase"]), now, reason)


def _key(node: str) -> tuple[str, str]:
    return f"NODE#{node}", "NODE"


def _let_through(row: Row) -> bool:
    """The breaker has admitted this session, or is never asked about one of its kind."""
    return bool(row.get("admitted_by_breaker")) or _taken(row)


def _taken(row: Row) -> bool:
    """AWS takes the node, by what this session or one that it superseded was opened for."""
    kind = str((row.get("fault") or {}).get("kind", ""))
    return ends_anyway(kind, bool(row.get("gone"))) or bool((row.get("supersedes") or {}).get("taken"))


def _no_act_since(seen: Row | None) -> Condition | None:
    if seen is None:
        return None
    same = equals("acts", seen["acts"]) if "acts" in seen else missing("acts")
    return same & missing("replaced_by")
