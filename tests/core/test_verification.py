"""Which check proves that a fault is cured, and how long it may take."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planaria.core import history
from planaria.core.catalog import codes, kinds, look_up, text
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action, Fault, Severity
from planaria.core.node import NodeView
from planaria.core.policy import DeepCheck, Policy
from planaria.core.verification import (
    COLUMNS,
    FILE,
    Suite,
    of_hardware,
    proof_of,
    proofs,
    proofs_of,
    suite_for,
    suite_of,
    times_of,
)

T = 1_772_600_760.0
POLICY = Policy()
LAST = "*,*,light,no,because,design\n"


@pytest.mark.parametrize(
    ("kind", "code", "suite", "hardware"),
    [
        ("xid", "48", Suite.DEEP, True),
        ("xid", "63", Suite.DEEP, True),
        ("xid", "64", Suite.DEEP, True),
        ("xid", "74", Suite.DEEP, True),
        ("xid", "79", Suite.DEEP, True),
        ("xid", "119", Suite.DEEP, True),
        ("xid", "120", Suite.DEEP, True),
        ("xid", "145/reset", Suite.DEEP, True),
        ("xid", "154/reboot", Suite.DEEP, True),
        ("sxid", "20034", Suite.DEEP, True),
        ("gpu_ecc", "volatile_uncorrectable", Suite.DEEP, True),
        ("gpu_remap", "pending", Suite.DEEP, True),
        ("nvlink", "down", Suite.DEEP, True),
        ("thermal", "anything", Suite.DEEP, True),
        ("efa", "missing", Suite.DEEP, True),
        ("node_condition", "AcceleratedHardwareReady/NvidiaDoubleBitError", Suite.DEEP, True),
        ("node_condition", "NetworkingReady/InterfaceNotUp", Suite.LIGHT, False),
        ("node_health", "silent", Suite.LIGHT, False),
        ("node_health", "NvidiaErrorReboot/reboot", Suite.DEEP, True),
        ("status_check", "StatusCheckFailed_Instance", Suite.LIGHT, False),
        ("status_check", "StatusCheckFailed_System", Suite.LIGHT, True),
        ("scheduled_event", "instance-retirement", Suite.LIGHT, True),
        ("scheduled_event", "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", Suite.LIGHT, True),
        ("spot_interruption", "terminate", Suite.LIGHT, False),
        ("capacity_end", "interruption", Suite.LIGHT, False),
        ("state_change", "terminated", Suite.LIGHT, False),
        ("lustre", "mount_hung", Suite.LIGHT, False),
        ("console", "reboot", Suite.LIGHT, False),
        ("", "", Suite.LIGHT, False),
    ],
)
def test_what_proves_the_cure(kind: str, code: str, suite: Suite, hardware: bool) -> None:
    proof = proof_of(kind, code)
    assert (proof.suite, proof.hardware) == (suite, hardware)
    assert proof.reason and proof.sources


def test_every_row_can_be_reached() -> None:
    known = {("xid", str(n)) for n in range(200)} | {("sxid", "20034"), ("console", "x")}
    known |= {(kind, code) for kind in kinds() for code in (*codes(kind), "anything")}
    known |= {("xid", "94"), ("node_condition", "NvidiaErrorReboot/x"), ("node_health", "silent")}
    reached = {id(proof_of(*fault)) for fault in known}
    assert [(kind, code) for kind, code, proof in proofs() if id(proof) not in reached] == []


def test_every_kind_of_the_table_is_one_of_the_catalogue() -> None:
    assert {kind for kind, _, _ in proofs()} - kinds() == {"*"}


def test_a_repair_of_a_gpu_is_never_checked_lightly() -> None:
    """Whatever the catalogue resets is the GPU's own, and an idle GPU shows nothing."""
    faults = [("xid", str(n)) for n in range(200)]
    faults += [(kind, code.replace("*", "x")) for kind in kinds() for code in codes(kind)]
    resets = [fault for fault in faults if look_up(*fault).action is Action.RESET]
    assert len(resets) > 15
    assert [fault for fault in resets if proof_of(*fault).suite is not Suite.DEEP] == []


@pytest.mark.parametrize("action", [Action.REPLACE, Action.DRAIN])
def test_a_new_machine_is_checked_lightly_and_by_policy_deeply(action: Action) -> None:
    assert suite_of("xid", "48", action, POLICY) is Suite.LIGHT
    assert suite_of("xid", "48", action, Policy(deep_check=DeepCheck.ALWAYS)) is Suite.DEEP


@pytest.mark.parametrize("action", [Action.RESET, Action.REBOOT])
def test_a_repaired_one_by_its_fault(action: Action) -> None:
    assert suite_of("xid", "48", action, POLICY) is Suite.DEEP
    assert suite_of("lustre", "mount_hung", action, POLICY) is Suite.LIGHT
    assert suite_of("xid", "48", action, Policy(deep_check=DeepCheck.NEVER)) is Suite.LIGHT
    assert suite_of("lustre", "mount_hung", action, Policy(deep_check=DeepCheck.ALWAYS)) is Suite.DEEP


@pytest.mark.parametrize("when", DeepCheck)
def test_a_spare_was_checked_before_and_serves_at_once(when: DeepCheck) -> None:
    assert suite_of("xid", "79", Action.REPLACE, Policy(deep_check=when), spare=True) is Suite.LIGHT


def row(*seen: tuple[str, str, float], fault: tuple[str, str], **more: Any) -> dict[str, Any]:
    view = NodeView("i-0aaaaaaaaaaaaaaa1", instance_type="p5.48xlarge")
    for kind, code, at in seen:
        note = history.remember(view, Fault(kind, code, Severity.FATAL, kind), at, False)
        view = view if note is None else history.noted(view, note)
    kind, code = fault
    return {
        "node_id": view.node_id,
        "managed": True,
        "instance_type": view.instance_type,
        "recent": dict(view.recent),
        "action": "REBOOT",
        "opened_at": T,
        "fault": {"kind": kind, "code": code},
        **more,
    }


def test_what_was_seen_beside_the_fault_counts_too() -> None:
    hung = ("lustre", "mount_hung")
    assert suite_for(row(fault=hung), POLICY) is Suite.LIGHT
    assert suite_for(row(("xid", "48", T - 60), fault=hung), POLICY) is Suite.DEEP
    harmless, old = ("xid", "43", T - 60), ("xid", "48", T - POLICY.confirmation_seconds - 60)
    assert suite_for(row(harmless, old, fault=hung), POLICY) is Suite.LIGHT
    later = row(("xid", "48", T + 90), fault=hung, acts={"reboot": T + 30})
    assert suite_for(later, POLICY) is Suite.LIGHT, "what comes after the act is a new fault, not its check"
    assert suite_for(row(("xid", "48", T - 60), fault=hung, action="REPLACE"), POLICY) is Suite.LIGHT


def test_the_times_follow_the_policys_scale() -> None:
    assert times_of(Suite.LIGHT, POLICY).answer == 120.0
    assert times_of(Suite.LIGHT, POLICY).reach == POLICY.boot_timeout_seconds
    deep = times_of(Suite.DEEP, POLICY)
    assert deep.answer == deep.reach == POLICY.deep_check_timeout_seconds
    scaled = Policy(boot_timeout_seconds=30.0, deep_check_timeout_seconds=5.0)
    assert times_of(Suite.LIGHT, scaled).answer == 10.0
    assert times_of(Suite.DEEP, scaled).reach == 30.0


def test_hardware_is_to_blame_by_the_newest_fault() -> None:
    assert of_hardware({"fault": {"kind": "xid", "code": "79"}})
    assert not of_hardware({"fault": {"kind": "spot_interruption", "code": "terminate"}})
    assert not of_hardware({})


@given(st.text(), st.text())
def test_there_is_an_answer_to_anything(kind: str, code: str) -> None:
    assert proof_of(kind, code).suite in Suite


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("kind,code\n", f"{FILE}: the first line must be {COLUMNS}"),
        (f"{COLUMNS}\n", f"{FILE}: the last row must be *,*"),
        (f"{COLUMNS}\nxid,1,soft,no,r,s\n{LAST}", "line 2: suite must be one of light, deep, not 'soft'"),
        (f"{COLUMNS}\nxid,1,deep,maybe,r,s\n{LAST}", "line 2: hardware must be yes or no, not 'maybe'"),
        (f"{COLUMNS}\nxid,1,deep,no,,s\n{LAST}", "line 2: no field may be empty"),
        (f"{COLUMNS}\nxid,1,deep,no,r\n{LAST}", "line 2: must have 6 fields"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(content: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        list(proofs_of(FILE, content))
    assert says in str(refused.value)


def test_the_table_is_sound() -> None:
    assert len(tuple(proofs_of(FILE, text(FILE)))) == len(proofs())
