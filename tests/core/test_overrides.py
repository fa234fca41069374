"""The cluster's own answers to faults."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.catalog import look_up
from planaria.core.decision import decide
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action, Fault, Severity
from planaria.core.node import NodeView
from planaria.core.overrides import Override, overrides_of
from planaria.core.policy import Policy


def one(kind: str, code: str, action: str, **more: Any) -> tuple[Override, ...]:
    return overrides_of([{"kind": kind, "code": code, "action": action, "reason": "so it is here", **more}])


def answer(overrides: tuple[Override, ...], kind: str, code: str, family: str = "") -> str:
    return look_up(kind, code, family, overrides).action.value


def test_an_answer_goes_before_the_catalogue_and_says_where_it_is_from() -> None:
    entry = look_up("xid", "63", "p5", one("xid", "63", "REBOOT"))
    assert (entry.action, entry.rule, entry.reason) == (Action.REBOOT, "override-xid-63", "so it is here")
    assert (entry.sources, entry.severity, entry.proof) == ("cluster file", Severity.FATAL, "sure")
    assert look_up("xid", "63").action is Action.MONITOR


def test_a_single_observer_stays_one_whatever_the_answer_is() -> None:
    entry = look_up("efa", "rdma_read_wr_err", "", one("efa", "rdma_*", "REPLACE"))
    assert (entry.action, entry.proof) == (Action.REPLACE, "one")


def test_the_first_that_fits_counts() -> None:
    both = one("xid", "63", "REBOOT", families=["p4d"]) + one("xid", "6*", "REPLACE")
    assert answer(both, "xid", "63", "p4d") == "REBOOT"
    assert answer(both, "xid", "63", "p5") == "REPLACE"
    assert answer(both, "xid", "64", "p4d") == "REPLACE"
    assert answer(both, "sxid", "63") == "MONITOR"


def test_an_answer_without_a_qualifier_is_for_all_but_those_that_take_the_fault_back() -> None:
    nvlink = one("xid", "149", "REPLACE")
    for qualifier in ("", "/reset", "/fatal", "/nonfatal", "/ignore", "/eval154"):
        assert answer(nvlink, "xid", f"149{qualifier}") == "REPLACE"
    assert answer(nvlink, "xid", "149/injected") == "MONITOR"
    assert answer(one("xid", "149/injected", "RESET"), "xid", "149/injected") == "RESET"
    recovery = one("xid", "154*", "REPLACE")
    assert answer(recovery, "xid", "154/reboot") == "REPLACE"
    assert answer(recovery, "xid", "154/none") == "MONITOR"
    checks = one("status_check", "StatusCheckFailed", "REPLACE")
    assert answer(checks, "status_check", "StatusCheckFailed") == "REPLACE"
    for qualifier in ("unknown", "ambiguous", "well"):
        assert answer(checks, "status_check", f"StatusCheckFailed/{qualifier}") == "MONITOR"
    ends = one("state_change", "terminated", "DRAIN")
    assert answer(ends, "state_change", "terminated") == "DRAIN"
    assert answer(ends, "state_change", "terminated/requested") == "MONITOR"
    conditions = one("node_condition", "KernelReady/*", "REBOOT")
    assert answer(conditions, "node_condition", "KernelReady/SoftLockup") == "REBOOT"
    assert answer(conditions, "node_condition", "KernelReady/SoftLockup/unknown") == "MONITOR"
    assert answer(conditions, "node_condition", "KernelReady/SoftLockup/well") == "MONITOR"
    assert (
        answer(one("node_condition", "KernelReady", "REBOOT"), "node_condition", "KernelReady/AppCrash")
        == "REBOOT"
    )


def test_an_answer_to_an_xid_is_one_to_the_condition_that_repeats_it() -> None:
    condition = "AcceleratedHardwareReady/NvidiaXID13Error"
    assert answer(one("xid", "13", "DRAIN"), "node_condition", condition) == "DRAIN"
    both = one("xid", "13", "DRAIN") + one("node_condition", condition, "REPLACE")
    assert answer(both, "node_condition", condition) == "REPLACE"


def test_the_decision_follows_it() -> None:
    policy = Policy(catalog=one("xid", "13", "RESET", families=["p5"]))
    fault = Fault("xid", "13", Severity.INFO, "agent_xid")
    decided = decide(fault, NodeView("i-0aaaa", instance_type="p5.48xlarge"), policy)
    assert (decided.action, decided.rule) == (Action.REBOOT, "override-xid-13")
    assert decided.reason.startswith("so it is here; single GPUs are not reset here")
    assert decide(fault, None, policy).action is Action.MONITOR


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"kind": "xid"}, "policy.catalog[0].code must be a text that is not empty, not None"),
        ({"kind": "xdi"}, "policy.catalog[0].kind 'xdi' is not in the catalogue (is xid meant?)"),
        (
            {"kind": "*", "code": "*"},
            "policy.catalog[0].kind '*' is not in the catalogue (it has: capacity_end, ",
        ),
        ({"kind": "job", "code": "exit"}, "policy.catalog[0].kind job is no fault of a node"),
        (
            {"code": "Xid 63"},
            "policy.catalog[0].code must be the number of an Xid such as 63, 154/reset or *",
        ),
        ({"kind": "sxid", "code": "x"}, "policy.catalog[0].code must be the number of an SXid such as"),
        (
            {"kind": "efa", "code": "mising"},
            "policy.catalog[0].code 'mising' is no efa of the catalogue (is missing",
        ),
        (
            {"kind": "gpu_missing", "code": "8"},
            "policy.catalog[0].code '8' is no gpu_missing of the catalogue (it has: lost; * is any)",
        ),
        (
            {"kind": "status_check", "code": "StatusCheckFailed/well"},
            "policy.catalog[0].code 'StatusCheckFailed/well'",
        ),
        (
            {"action": "reset"},
            "policy.catalog[0].action must be one of MONITOR, RESET, REBOOT, DRAIN, REPLACE",
        ),
        ({"reason": ""}, "policy.catalog[0].reason must be a text that is not empty, not ''"),
        ({"families": "p5"}, "policy.catalog[0].families must be a list such as [p5, p5en], not 'p5'"),
        ({"families": [5]}, "policy.catalog[0].families must be a list such as [p5, p5en], not [5]"),
        ({"families": 5}, "policy.catalog[0].families must be a list such as [p5, p5en], not 5"),
    ],
)
def test_a_broken_entry_is_refused_with_one_sentence(entry: dict[str, Any], sentence: str) -> None:
    whole = {"kind": "xid", "code": "63", "action": "REBOOT", "reason": "r"}
    given = {"kind": "xid"} if entry == {"kind": "xid"} else {**whole, **entry}
    with pytest.raises(InvalidInput) as refusal:
        overrides_of([given])
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("spot_interruption", "terminate"),
        ("lifecycle", "autoscaling:EC2_INSTANCE_TERMINATING"),
        ("lifecycle", "autoscaling:*"),
        ("capacity_end", "interruption"),
        ("state_change", "terminated"),
        ("state_change", "shut*"),
    ],
)
def test_what_aws_takes_away_is_not_watched(kind: str, code: str) -> None:
    for action in ("MONITOR", "RESET", "REBOOT"):
        with pytest.raises(InvalidInput, match="must be DRAIN or REPLACE"):
            one(kind, code, action)
        with pytest.raises(InvalidInput, match="must be DRAIN or REPLACE"):
            one(kind, code, action, families=["p5"])
    for action in ("DRAIN", "REPLACE"):
        assert one(kind, code, action)


def test_what_may_be_new_or_is_a_matter_of_taste_is_allowed() -> None:
    for kind, code, action in (
        ("xid", "9999", "REBOOT"),
        ("sxid", "*", "MONITOR"),
        ("xid", "154/reset", "REPLACE"),
        ("state_change", "stopped", "MONITOR"),
        ("rebalance", "*", "DRAIN"),
        ("thermal", "hw_slowdown", "DRAIN"),
        ("scheduled_event", "AWS_EC2_SOMETHING_NEW", "DRAIN"),
        ("node_condition", "NetworkUnavailable/NoRoute", "REBOOT"),
        ("node_health", "NvidiaErrorTerminate", "REBOOT"),
        ("efa", "rdma_read_wr_err", "REBOOT"),
        ("fallen_off_bus", "fallen_off_bus", "REBOOT"),
        ("lifecycle", "warm-pool", "MONITOR"),
        ("node_health", "*/unhealthy", "REPLACE"),
        ("xid", "*", "MONITOR"),
        ("xid", "7?", "REPLACE"),
        ("lustre", "*", "MONITOR"),
    ):
        assert one(kind, code, action)[0].action == action


def test_the_same_answer_twice_is_refused() -> None:
    entry = {"kind": "xid", "code": "63", "action": "REBOOT", "reason": "r"}
    with pytest.raises(InvalidInput, match=r"policy\.catalog\[1\]: xid 63 stands there twice"):
        overrides_of([entry, {**entry, "action": "RESET"}])


@pytest.mark.parametrize(
    ("kind", "code", "action", "sentence"),
    [
        ("xid", "*", "REPLACE", "must be MONITOR for xid *, not REPLACE: an answer to every xid can only"),
        ("xid", "??", "REBOOT", "write the number of an Xid instead"),
        ("xid", "*/*", "DRAIN", "action must be MONITOR for xid */*"),
        ("sxid", "?*", "RESET", "write the number of an SXid instead"),
        ("node_health", "*", "REPLACE", "for REPLACE write a code such as NvidiaErrorTerminate"),
        ("status_check", "Status*", "REPLACE", "action must be MONITOR for status_check Status*"),
        ("fallen_off_bus", "*", "REBOOT", "write its code as `planaria triage` shows it instead"),
        ("efa", "[!x]*", "REPLACE", "action must be MONITOR for efa [!x]*"),
        ("lifecycle", "*", "MONITOR", "ends these nodes anyway; write autoscaling:EC2_INSTANCE_TERM"),
        ("spot_interruption", "*", "REPLACE", "write terminate, stop, hibernate, one entry for each"),
        ("capacity_end", "*", "DRAIN", "write interruption, expiration, one entry for each"),
        ("state_change", "*", "MONITOR", "code must name what it answers to, not '*'"),
        ("state_change", "*", "REPLACE", "write stopping, stopped, shutting-down or terminated"),
        ("state_change", "pending", "MONITOR", "every node is pending once, its replacement too"),
        ("state_change", "running", "REPLACE", "code must be stopping, stopped, shutting-down or terminated"),
        ("state_change", "[pr]*", "REPLACE", "code must be stopping, stopped"),
        ("state_change", "*ing", "REPLACE", "code must be stopping, stopped"),
        ("rebalance", "*", "REPLACE", "action must be MONITOR or DRAIN for rebalance, not REPLACE"),
        ("rebalance", "rebalance", "REBOOT", "action must be MONITOR or DRAIN for rebalance, not REBOOT"),
        ("lifecycle", "launch-successful", "REPLACE", "must be MONITOR for lifecycle launch-successful"),
    ],
)
def test_an_answer_to_everything_can_only_weaken(kind: str, code: str, action: str, sentence: str) -> None:
    for families in ([], ["p5"]):
        with pytest.raises(InvalidInput) as refusal:
            one(kind, code, action, families=families)
        said = str(refusal.value)
        assert said.startswith("policy.catalog[0].") and sentence in said
        assert "\n" not in said and ". " not in said


def several(*entries: tuple[str, str, str, list[str]]) -> tuple[Override, ...]:
    return overrides_of(
        [
            {"kind": kind, "code": code, "action": action, "families": families, "reason": "r"}
            for kind, code, action, families in entries
        ]
    )


P5, P4 = ["p5"], ["p4d", "p5"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("xid", "*", "MONITOR", []), ("xid", "79", "REPLACE", [])),
        (("xid", "*", "MONITOR", []), ("xid", "79", "REPLACE", P5)),
        (("xid", "*", "MONITOR", P4), ("xid", "79", "REPLACE", P5)),
        (("xid", "7?", "REBOOT", []), ("xid", "79", "REPLACE", [])),
        (("xid", "7*", "REBOOT", []), ("xid", "7?", "REPLACE", [])),
        (("xid", "154", "REBOOT", []), ("xid", "154/reset", "REPLACE", [])),
        (("xid", "154", "REBOOT", []), ("xid", "154/*", "REPLACE", [])),
        (("xid", "63", "REBOOT", ["p5", "p4d"]), ("xid", "63", "REPLACE", P4)),
        (("node_condition", "KernelReady/*", "REBOOT", []), ("node_condition", "KernelReady/x", "DRAIN", [])),
    ],
)
def test_what_is_never_reached_is_refused(first: Any, second: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        several(("sxid", "1", "DRAIN", []), first, second)
    what, before = f"{second[0]} {second[1]}", f"{first[0]} {first[1]}"
    assert str(refusal.value) == (
        f"policy.catalog[2]: {what} is never reached, for policy.catalog[1], {before}, answers all of it "
        "before; put the narrower one first, or leave one out"
    )
    if (first[1], first[3]) != (second[1], second[3]) and first[1] != second[1]:
        assert len(several(second, first)) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("xid", "*", "MONITOR", P5), ("xid", "79", "REPLACE", [])),
        (("xid", "*", "MONITOR", P5), ("xid", "79", "REPLACE", ["p4d"])),
        (("xid", "*", "MONITOR", P5), ("xid", "79", "REPLACE", P4)),
        (("xid", "154", "REBOOT", []), ("xid", "154/none", "REPLACE", [])),
        (("xid", "149", "REBOOT", []), ("xid", "149/injected", "RESET", [])),
        (("xid", "154/reset", "REBOOT", []), ("xid", "154", "REPLACE", [])),
        (("xid", "154/*", "REBOOT", []), ("xid", "154", "REPLACE", [])),
        (("xid", "7?", "REBOOT", []), ("xid", "7*", "REPLACE", [])),
        (("xid", "79", "REBOOT", []), ("sxid", "79", "REPLACE", [])),
        (("efa", "missing", "REBOOT", []), ("efa", "link_down", "REPLACE", [])),
    ],
)
def test_what_is_reached_in_part_stays(first: Any, second: Any) -> None:
    assert len(several(first, second)) == 2


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_document_is_read_or_refused(document: Any) -> None:
    try:
        overrides_of(document)
    except InvalidInput as refusal:
        assert str(refusal).startswith("policy.catalog")


fields = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(
            ["xid", "sxid", "efa", "status_check", "node_condition", "spot_interruption"]
        ),
        "code": st.sampled_from(["*", "63", "154/*", "missing", "StatusCheckFailed", "Ready/*", "[", "?"])
        | st.text(),
        "action": st.sampled_from(list(Action)),
        "reason": st.just("r"),
    }
)


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(fields, max_size=3), st.text(max_size=8), st.sampled_from(["", "p5"]))
def test_a_healthy_report_is_never_answered_to(entries: list[dict[str, Any]], code: str, family: str) -> None:
    try:
        overrides = overrides_of(entries)
    except InvalidInput:
        return
    for entry in entries:
        assert look_up(entry["kind"], f"{code}/well", family, overrides) == look_up(
            entry["kind"], f"{code}/well", family
        )
