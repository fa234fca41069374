"""Random lives of the breaker on the memory twin: the bound holds, one probe at a time, no slot is lost."""

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from planaria.core.breaker import KEY, Breaker
from planaria.core.table import Row
from planaria.memory.table import MemoryTable

WINDOW = 100.0
DETECTORS = st.sampled_from(["xid", "ec2", "console"])
OUTCOMES = ["HEALED", "RETIRED", "ESCALATED", "CANCELLED"]


@dataclass
class Removal:
    """What the test knows of one admitted incident. bound: it was admitted by the rules, not by a person's
    override, nor as the successor of another."""

    detector: str
    at: float
    bound: bool
    outcome: str = ""


class Lives(RuleBasedStateMachine):
    @initialize(cap=st.integers(1, 4), own=st.integers(1, 4))
    def start(self, cap: int, own: int) -> None:
        self.table, self.now, self.numbers = MemoryTable(), 1000.0, 0
        self.cap, self.own = cap, min(cap, own)
        self.breaker = Breaker(self.table, cap, WINDOW, own)
        self.admitted: dict[str, Removal] = {}
        self.refused: dict[str, str] = {}

    # --- what the test sees ------------------------------------------------------------------------

    @property
    def row(self) -> Row:
        return self.table.get(*KEY) or {}

    def states(self) -> dict[str, dict[str, Any]]:
        return {name: value for name, value in self.row.items() if name.startswith("tripped")}

    def waits_for(self, probe: str) -> bool:
        """It is under way, or has failed: nothing passes for another window."""
        head = self.table.get(f"INCIDENT#{probe}", "INCIDENT") or {}
        return head.get("outcome", "ESCALATED") == "ESCALATED"

    def under_way(self, name: str) -> bool:
        head = self.table.get(f"INCIDENT#{name}", "INCIDENT") or {}
        return "outcome" not in head

    def open_ones(self) -> list[str]:
        return sorted(name for name, removal in self.admitted.items() if not removal.outcome)

    def new(self) -> str:
        self.numbers += 1
        name = f"i-0{self.numbers % 5}-{self.numbers}"
        self.table.write(f"INCIDENT#{name}", "INCIDENT", sets={"incident_id": name})
        return name

    def close_row(self, name: str, outcome: str) -> None:
        self.table.write(f"INCIDENT#{name}", "INCIDENT", sets={"outcome": outcome})

    # --- what happens ------------------------------------------------------------------------------

    @rule(detector=DETECTORS)
    def admit(self, detector: str) -> None:
        self._admit(self.new(), detector)

    @rule(detector=DETECTORS)
    def storm(self, detector: str) -> None:
        for _ in range(5):
            self._admit(self.new(), detector)

    @precondition(lambda self: any("probe" in state for state in self.states().values()))
    @rule(outcome=st.sampled_from(OUTCOMES), detector=DETECTORS)
    def the_probe_ends(self, outcome: str, detector: str) -> None:
        probe = next(state["probe"] for state in self.states().values() if "probe" in state)
        if self.under_way(probe):
            self._end(probe, outcome, dies=True)
        self._admit(self.new(), detector)

    @precondition(lambda self: self.refused)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.refused)))
        self._admit(name, self.refused.pop(name))

    def _admit(self, name: str, detector: str) -> None:
        busy = {
            state
            for state, value in self.states().items()
            if state in ("tripped", f"tripped_by_{detector}")
            and (self.waits_for(value["probe"]) if "probe" in value else value["until"] >= self.now)
        }
        said = self.breaker.admit(name, detector, self.now)
        if said:
            assert said.startswith("breaker: ") and "--override-breaker" in said
            assert self.states(), "a refusal is recorded"
            self.refused[name] = detector
        else:
            assert not busy, "nothing passes a circuit that waits"
            self.admitted[name] = Removal(detector, self.now, True)

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data())
    def the_same_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open_ones()))
        known = name in self.row.get("removals", {})
        size = len(self.row["removals"])
        said = self.breaker.admit(name, self.admitted[name].detector, self.now)
        if known:
            assert said == "" and len(self.row["removals"]) <= size
        if said == "":
            self.admitted[name].at = self.now

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), detector=DETECTORS)
    def supersede(self, data: st.DataObject, detector: str) -> None:
        name = data.draw(st.sampled_from(self.open_ones()))
        has_slot = name in self.row.get("removals", {})
        probes = {state for state, value in self.states().items() if value.get("probe") == name}
        following = self.new()
        said = self.breaker.admit(following, detector, self.now, name)
        self.close_row(name, "SUPERSEDED")
        self.admitted[name].outcome = "SUPERSEDED"
        if not said:
            bound = self.admitted[name].bound if has_slot else True
            self.admitted[following] = Removal(detector if not has_slot else "", self.now, bound)
        if has_slot:
            assert said == "" and name not in self.row["removals"]
            self.admitted[name].bound = False
            assert all(self.states()[state]["probe"] == following for state in probes)

    @rule(detector=DETECTORS)
    def override(self, detector: str) -> None:
        name = self.new()
        assert self.breaker.admit(name, detector, self.now, override=True) == ""
        assert name in self.row["removals"] and name in self.row[f"removals_by_{detector}"]
        self.admitted[name] = Removal(detector, self.now, False)

    @precondition(lambda self: self.open_ones())
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), dies=st.booleans())
    def end(self, data: st.DataObject, outcome: str, dies: bool) -> None:
        """dies: the Lambda that cancelled it dies before it frees the slot."""
        self._end(data.draw(st.sampled_from(self.open_ones())), outcome, dies)

    def _end(self, name: str, outcome: str, dies: bool) -> None:
        removal = self.admitted[name]
        self.close_row(name, outcome)
        removal.outcome = outcome
        if outcome == "CANCELLED":
            removal.bound = False
            if not dies:
                self.breaker.release(name, removal.detector or "xid")

    @rule(seconds=st.sampled_from([0.5, 10.0, 60.0, 101.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.breaker.tidy(self.now)
        assert not self.breaker.tidy(self.now)
        maps = [value for name, value in self.row.items() if name.startswith("removals")]
        assert all(at > self.now - WINDOW for one in maps for at in one.values())
        assert all(self.under_way(value["probe"]) for value in self.states().values() if "probe" in value)

    @precondition(lambda self: self.numbers % 9 == 8)
    @rule()
    def a_person_closes_it(self) -> None:
        self.breaker.close("ada", "test", self.now)
        assert self.states() == {} and self.breaker.status(self.now)["removals"] == {}
        for removal in self.admitted.values():
            removal.bound = False

    # --- what always holds --------------------------------------------------------------------------

    @invariant()
    def never_more_than_the_cap_within_a_window(self) -> None:
        live = [r for r in self.admitted.values() if r.bound and r.at > self.now - WINDOW]
        assert len(live) <= self.cap
        for detector in {r.detector for r in live} - {""}:
            assert sum(r.detector == detector for r in live) <= self.own

    @invariant()
    def what_is_said_of_it_is_true(self) -> None:
        said = self.breaker.full(self.now)
        if not said and not self.states():
            assert len(self.breaker.status(self.now)["removals"]) < self.cap

    def teardown(self) -> None:
        """Once all has ended and the window is over, one passes as the probe, and then all is as new."""
        for name in self.open_ones():
            self.close_row(name, "HEALED")
        for _ in range(2):  # a probe that had failed is heard first, and is waited for
            self.breaker.tidy(self.now)
            self.now += WINDOW + 1
        last = self.new()
        assert self.breaker.admit(last, "xid", self.now) == ""
        assert list(self.row["removals"]) == [last]
        self.close_row(last, "HEALED")
        self.breaker.tidy(self.now)
        assert "tripped" not in self.row and "tripped_by_xid" not in self.row


Lives.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
