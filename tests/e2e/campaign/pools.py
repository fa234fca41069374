"""One place of the campaign for stories about no node: a node group with a warm pool of one spare."""

import time
from dataclasses import dataclass
from typing import Any

from planaria.core import pool, tags
from planaria.core.plans import is_gone
from planaria.core.pool import SpareState
from planaria.core.ports import Instance
from planaria.core.refills import Filled, as_seen
from planaria.core.table import Row
from planaria.wiring import Gateways
from tests.e2e.campaign.places import Case, Findings, Place, Wrong, lasting
from tests.e2e.fault_cases import REFILL, STORIES, Story

REST_SECONDS = 3600.0
SETTLE_SECONDS = 60.0


def node_group(number: int) -> str:
    return f"pool{number}"


@dataclass(frozen=True, slots=True)
class Before:
    """known: the group's instances before a story began, all of them ended."""

    at: float
    known: frozenset[str]


class Pool(Place):
    """Its node group has the name of the place. Sweep fills its pool for the first time."""

    @staticmethod
    def named(number: int, gw: Gateways) -> str:
        return node_group(number)

    def settle_in(self) -> None:
        self.until("first spare", lambda: self.whole() == "", SETTLE_SECONDS)

    def subjects(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def view(self) -> pool.View:
        return pool.read(self.gw.ledger, self.name)

    def instances(self) -> list[Instance]:
        return [i for i in self.gw.fleet.cluster() if i.tags.get(tags.GROUP) == self.name]

    def alive(self) -> list[str]:
        return sorted(i.node_id for i in self.instances() if i.state in ("pending", "running"))

    def rows(self) -> list[Row]:
        return [row for row in self.gw.ledger.nodes() if row.get("group") == self.name]

    def known(self) -> frozenset[str]:
        """All instances that the group ever had: EC2 forgets ended ones soon, and a lost one is in no row."""
        return frozenset(i.node_id for i in self.instances()) | {str(row["node_id"]) for row in self.rows()}

    def whole(self) -> str:
        view = self.view
        free = [str(row["node_id"]) for row in view.of(SpareState.FREE) if not pool.unfit(row)]
        if len(free) != 1 or free != self.alive():
            return f"{free} stand by"
        slots = {number: _end(slot) for number, slot in view.slots.items()}
        return "" if slots == {1: (Filled.FILLED, free[0], None)} else f"the slots are {slots}"

    def state(self) -> dict[str, Any]:
        about = ("node_id", "state", "spare", "lost", "check", "ready_at", "gone")
        return {
            "slots": list(self.view.slots.values()),
            "nodes": [{key: row.get(key) for key in about} for row in self.rows() if not is_gone(row)],
            "alive": self.alive(),
        }

    # --- a story ---------------------------------------------------------------------------------------

    def play(self, case: Case) -> None:
        story = STORIES[case.story]
        if story.begin != "fill the pool":
            raise Wrong(f"the emulator does not know how {story.begin!r} begins in a pool")
        self.empty()
        before = Before(time.time(), self.known())
        self.plan(case, self.name)
        self.order(REFILL, node_group=self.name)
        self.until_over(lambda: self.whole() == "" and self.befallen(case, self.name))
        self.check(story, before)
        if case.fault is None:
            self.redrive(case, before.at, self.subjects(), self._picture)
            self.check(story, before)

    def empty(self) -> None:
        """The spares have ended, and the slots rest as after a refill that failed: sweep leaves them to the
        person who orders the next one."""
        for slot in self.view.slots.values():
            sets = {"retry_at": time.time() + REST_SECONDS}
            self.gw.table.write(slot["pk"], slot["sk"], sets=sets, when=as_seen(slot))
        for node in self.alive():
            self.gw.fleet.terminate(node)
        self.until("empty pool", lambda: not self.alive() and all(map(is_gone, self.rows())), SETTLE_SECONDS)

    def check(self, story: Story, before: Before) -> None:
        """As many spares as the group is to have, launched once; nothing else lives or is half done."""
        findings = Findings()
        launched = self.known() - before.known
        findings.expect("instances launched", len(launched), story.launched)
        findings.expect("instances that live", len(self.alive()), story.spares)
        findings.expect("the place", self.whole(), "")
        findings.expect("incidents", self._incidents(), [])
        findings.judge(self)

    def _incidents(self) -> list[Row]:
        ours = self.known()
        return [row for row in self.gw.ledger.incidents() if row.get("node_id") in ours]

    def _picture(self) -> dict[str, Any]:
        """What a redrive could change."""
        return {
            "instances": self.alive(),
            "pool": self.gw.table.query(pool.pool_key(self.name)[0]),
            "nodes": [lasting(row) for row in self.rows()],
            "incidents": self._incidents(),
        }

    # --- afterwards ------------------------------------------------------------------------------------

    def repair(self, case: Case) -> None:
        """The next story empties the pool."""
        self.forget_plans(self.name)

    def rescue(self) -> bool:
        try:
            self.forget_plans(self.name)
            self.until("end of what runs", lambda: not self.running(), SETTLE_SECONDS)
            self.empty()
        except Exception:  # noqa: BLE001  then it is lost
            return False
        return True


def _end(slot: Row) -> tuple[Any, ...]:
    return slot["phase"], (slot.get("launch") or {}).get("instance_id"), slot.get("retry_at")
