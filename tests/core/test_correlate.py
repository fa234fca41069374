"""What faults mean together: correlations, repeats, patience. Whoever came first, the end is the same."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from planaria.core import correlate, history
from planaria.core.catalog import text
from planaria.core.classify import observed
from planaria.core.correlate import patience
from planaria.core.decision import decide, due
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action, Decision, Fault, Severity
from planaria.core.kernel_log import read
from planaria.core.node import NodeView
from planaria.core.policy import Policy

T = 1_772_600_760.0
GPU, OTHER = "PCI:0000:b3:00", "PCI:0000:b4:00"
POLICY, RESETS = Policy(), Policy(gpu_reset=True)


def xid(code: int, gpu: str = GPU, rest: str = "pid=1, name=python3") -> str:
    return f"NVRM: Xid ({gpu}): {code}, {rest}"


def sm(gpc: int, tpc: int, gpu: str = GPU) -> str:
    return xid(13, gpu, f"pid=1, name=x, Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM 0): Bad")


SXID = "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"


def seen(line: str) -> Fault:
    observation = read(line)
    assert observation is not None, line
    return observed(observation)


def decided(*told: tuple[str, float], policy: Policy = RESETS, **facts: Any) -> list[Decision]:
    """What is decided about each of these lines, told in this order, on a node without a session."""
    node = NodeView("i-0aaaaaaaaaaaaaaa1", **facts)
    decisions = []
    for line, at in told:
        fault = seen(line)
        note = history.remember(node, fault, at, False)
        node = node if note is None else history.noted(node, note)
        decisions.append(decide(fault, node, policy, at))
    return decisions


def strongest(*told: tuple[str, float], policy: Policy = RESETS) -> Action:
    return max((d.action for d in decided(*told, policy=policy)), key=lambda action: action.strength)


@pytest.mark.parametrize(
    ("lines", "action", "rule"),
    [
        ([xid(48)], Action.RESET, "xid-48"),
        ([xid(63)], Action.MONITOR, "xid-63"),
        ([xid(63), xid(48)], Action.RESET, "xid-48-with-remap"),
        ([xid(48), xid(63)], Action.RESET, "xid-63-with-48"),
        ([xid(48), xid(64)], Action.RESET, "xid-64"),
        ([xid(63), xid(48, OTHER)], Action.RESET, "xid-48"),
        ([xid(48), xid(45)], Action.MONITOR, "xid-45-caused"),
        ([xid(48, OTHER), xid(45)], Action.MONITOR, "xid-45"),
        ([xid(45)], Action.MONITOR, "xid-45"),
        ([xid(74)], Action.RESET, "xid-74"),
        ([SXID], Action.MONITOR, "sxid-12028"),
        ([SXID, xid(74)], Action.REBOOT, "xid-74-with-sxid"),
        ([xid(74), SXID], Action.REBOOT, "sxid-with-xid-74"),
    ],
)
def test_together_they_mean_something_else(lines: list[str], action: Action, rule: str) -> None:
    last = decided(*[(line, T + number) for number, line in enumerate(lines)])[-1]
    assert (last.action, last.rule) == (action, rule)
    assert last.sources


def test_a_cause_that_the_line_names_carries_the_action() -> None:
    [decision] = decided((xid(45, rest="pid=1, name=x, Ch 00000010, caused by previous Xid 149"), T))
    assert (decision.action, decision.rule) == (Action.MONITOR, "xid-45-caused")
    assert "Xid 149" in decision.reason


@pytest.mark.parametrize("lines", [(xid(63), xid(48)), (xid(74), SXID), (xid(45), xid(48), xid(63))])
def test_any_order_ends_in_the_same_action(lines: tuple[str, ...]) -> None:
    told = [(line, T + number) for number, line in enumerate(lines)]
    assert len({strongest(*order) for order in itertools.permutations(told)}) == 1


def test_what_is_minutes_apart_is_not_seen_together() -> None:
    assert decided((SXID, T), (xid(74), T + 900))[-1].rule == "xid-74"
    assert decided((xid(74), T + 900), (SXID, T))[-1].rule == "sxid-12028"


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        ([(sm(1, 3), T)], "xid-13"),
        ([(sm(1, 3), T), (sm(1, 3), T + 30)], "xid-13"),  # one occurrence
        ([(sm(1, 3), T), (sm(1, 3), T + 3600)], "xid-13-same-tpc"),
        ([(sm(1, 3), T), (sm(1, 4), T + 3600)], "xid-13"),
        ([(sm(1, 4), T), (sm(1, 3), T), (sm(1, 3), T + 3600)], "xid-13"),  # elsewhere too: the application
        ([(sm(1, 3, OTHER), T), (sm(1, 3), T + 3600)], "xid-13"),
        ([(sm(1, 3), T), (sm(1, 3), T + 90_000)], "xid-13"),  # more than a day apart
        ([(xid(13), T), (xid(13), T + 3600)], "xid-13"),  # without a place nothing repeats there
        ([(xid(31), T), (xid(31), T + 3600)], "xid-31-same-gpu"),
        ([(xid(31), T), (xid(31, OTHER), T + 10), (xid(31), T + 3600)], "xid-31"),
        ([(xid(94), T + 600 * n) for n in range(4)], "xid-94"),
        ([(xid(94), T + 600 * n) for n in range(5)], "xid-94-repeats"),
        ([(xid(43), T + 600 * n) for n in range(9)], "xid-43"),
    ],
)
def test_repeats(told: list[tuple[str, float]], rule: str) -> None:
    last = decided(*told)[-1]
    assert last.rule == rule
    assert last.action is (Action.MONITOR if rule.removeprefix("xid-").isdigit() else Action.RESET)


def test_a_repeat_that_the_application_may_cause_never_replaces_a_node() -> None:
    tried = {"reset": {"at": T - 7200, "kind": "xid", "code": "13"}}
    last = decided((sm(1, 3), T - 7300), (sm(1, 3), T), tried=tried)[-1]
    assert (last.action, last.rule) == (Action.MONITOR, "tried-before")
    assert "a person looks" in last.reason


def test_patience_is_data() -> None:
    assert patience("node_condition", "NetworkingReady/EFAErrorMetric")[0] == 1800
    assert patience("node_condition", "AcceleratedHardwareReady/NvidiaXID79Error")[0] == 0
    assert patience("xid", "79") == (0.0, "")


def test_a_condition_is_due_when_it_has_lasted_and_is_still_reported() -> None:
    bad = Fault("node_condition", "KernelReady/ForkFailedOutOfPIDs", Severity.FATAL, "eks")
    node = NodeView("i-0aaaaaaaaaaaaaaa1")
    note = history.remember(node, bad, T, False)
    assert note is not None
    node = history.noted(node, note)
    assert due(node, POLICY, T + 1799) == []
    assert due(node, POLICY, T + 1800) == [("node_condition", "KernelReady/ForkFailedOutOfPIDs", T)]
    assert due(node, POLICY, T + history.FORGOTTEN_SECONDS + 1) == []
    assert due(replace(node, acts={"reboot": T + 1}), POLICY, T + 3600) == [], "it must be told of again"
    well = history.remember(node, bad, T + 60, True)
    assert well is not None and due(history.noted(node, well), POLICY, T + 1800) == []


HEADS: dict[str, Callable[[str, str], Sequence[object]]] = {
    "correlations.csv": correlate.correlations_of,
    "repeats.csv": correlate.repeats_of,
    "patience.csv": correlate.patience_of,
}


@pytest.mark.parametrize("name", HEADS)
def test_the_tables_are_read(name: str) -> None:
    assert len(HEADS[name](name, text(name))) == len(text(name).splitlines()) - 1


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("correlations.csv", ",gpu,", ",rack,", "correlations.csv line 2: scope must be one of gpu, node"),
        ("correlations.csv", ",300,", ",soon,", "line 2: within_seconds must be a whole number, not 'soon'"),
        ("correlations.csv", "MONITOR", "WATCH", "line 2: action must be one of"),
        ("repeats.csv", ",yes,", ",maybe,", "repeats.csv line 2: alone must be one of yes, no"),
        ("repeats.csv", ",2,", ",two,", "repeats.csv line 2: bursts must be a whole number"),
        ("patience.csv", ",0,", ",-1,", "patience.csv line 2: seconds must be a whole number"),
        ("patience.csv", "kind,", "sort,", "patience.csv: the first line must be kind,code,seconds"),
    ],
)
def test_a_broken_table_names_file_line_and_rule(name: str, old: str, new: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        HEADS[name](name, text(name).replace(old, new, 1))
