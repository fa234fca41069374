import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planaria.core.catalog import Entry, Proof, codes, kinds, look_up, probes, tables, text
from planaria.core.catalog.tables import RULES, SXID, XID, exceptions_of, gpus_of, numbered, rules_of
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action, Severity
from planaria.core.kernel_log import read
from planaria.core.signal import Kind

LAST = "*,*,INFO,one,MONITOR,unknown-kind,because,design\n"
FAMILIES = sorted(tables.gpus())


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text(name).splitlines()))


def test_the_files_are_sound() -> None:
    assert len(tables.xids()) == 172
    assert len(tables.sxids()) == 92
    assert {family for _, family in tables.exceptions()} <= set(FAMILIES)
    assert tables.rules()


def test_a_rule_id_says_one_thing() -> None:
    """The same id may stand in several rows, but only for the same action and proof."""
    meant: dict[str, tuple[Action, Proof]] = {}
    for kind, code, entry in tables.rules():
        answer = entry.action, entry.proof
        assert meant.setdefault(entry.rule, answer) == answer, (kind, code)


def test_no_rule_is_hidden_behind_an_earlier_one() -> None:
    for number, (kind, code, entry) in enumerate(tables.rules()):
        for earlier_kind, earlier_code, _ in tables.rules()[:number]:
            if earlier_kind == kind:
                assert earlier_code not in ("*", code), (kind, code, entry.rule)


CONTESTED = [
    63,
    92,
    94,
    109,
    136,
    68,
    69,
    121,
    54,
    142,
    144,
    145,
    146,
    147,
    148,
    149,
    150,
    151,
    61,
    62,
    46,
    64,
    79,
    157,
    74,
    48,
    95,
]


@pytest.mark.parametrize("code", CONTESTED)
def test_where_sources_disagree_the_reason_names_them(code: int) -> None:
    entry = look_up("xid", str(code))
    assert entry.rule == f"xid-{code}"
    assert len(entry.reason) > 30
    assert entry.sources.count("=") >= 6
    names = ("NVIDIA", "gpud", "Azure", "EKS", "ADT", "gcm", "HyperPod", "every source", "sources")
    assert sum(name in entry.reason for name in names) >= 1, entry.reason


def test_one_source_against_all_the_others_is_named() -> None:
    """Where gpud or Azure would act and we do not, the row says so."""
    for row in rows("xid.csv"):
        if row["action"] != "MONITOR" or 144 <= int(row["code"]) <= 150:
            continue
        if "gpud=Fatal" in row["sources"]:
            assert "gpud" in row["reason"], row["code"]
        if "azure=FAIL" in row["sources"]:
            assert "Azure" in row["reason"], row["code"]
        if "eks=FATAL" in row["sources"]:
            assert "EKS" in row["reason"], row["code"]


def test_application_faults_never_remove_a_node() -> None:
    for row in rows("xid.csv"):
        if "nvidia=RESTART_APP" in row["sources"] or "nvidia=IGNORE" in row["sources"]:
            assert row["action"] == "MONITOR", row["code"]


@pytest.mark.parametrize("family", ["", *FAMILIES, "trn1", "c7i"])
def test_every_number_has_an_answer_on_every_family(family: str) -> None:
    for number in [*tables.xids(), "0", "9999", "abc", ""]:
        entry = look_up("xid", number, family)
        assert entry.reason
        assert entry.rule.startswith("xid-")
        assert entry.proof is Proof.SURE


def test_answers_that_depend_on_the_gpu() -> None:
    def actions(number: str, *families: str) -> list[str]:
        return [look_up("xid", number, family).action.value for family in families]

    assert actions("64", "", "p5", "p4d", "p4de", "p3", "g4dn") == ["RESET", "RESET", *["REBOOT"] * 4]
    assert actions("95", "p5en", "p4d", "p3") == ["RESET", "REBOOT", "RESET"]
    # NVIDIA: 74 and 136 mean nothing on Blackwell, 143 and 156 nothing on A100, 54 nothing on GB200.
    assert actions("74", "p5", "p4d", "p6-b200", "p6-b300", "p6e-gb200") == [
        "RESET",
        "RESET",
        *["MONITOR"] * 3,
    ]
    assert actions("136", "p5", "p4d", "p6-b200") == ["RESET", "MONITOR", "MONITOR"]
    assert actions("143", "p4d", "p5", "p6-b200") == ["MONITOR", "RESET", "RESET"]
    assert actions("54", "p5", "p6-b300", "p6e-gb200") == ["REPLACE", "REPLACE", "MONITOR"]
    # Families that NVIDIA's catalogue has no column for are answered as if nothing were known.
    assert actions("74", "g5", "g6e", "p3", "nothing") == ["RESET"] * 4
    assert look_up("xid", "74", "p6-b200").rule == "xid-74-not-on-b100"


def test_what_the_line_says_goes_before_the_table_of_gpus() -> None:
    """A decoded line comes from the driver of this very GPU."""
    for family in ("", "p4d", "p5", "p6-b200"):
        assert look_up("xid", "149/reset", family).action is Action.RESET
        assert look_up("xid", "154/reboot", family).action is Action.REBOOT
        assert look_up("xid", "154/none", family).action is Action.MONITOR


@pytest.mark.parametrize(
    ("code", "action", "severity"),
    [
        ("149/reset", "RESET", "FATAL"),
        ("145/ignore", "MONITOR", "DEGRADED"),
        ("145/eval154", "MONITOR", "DEGRADED"),
        ("147/fatal", "RESET", "FATAL"),
        ("147/nonfatal", "MONITOR", "DEGRADED"),
        ("149/injected", "MONITOR", "INFO"),
        ("149", "MONITOR", "INFO"),
        ("149/other", "MONITOR", "INFO"),
    ],
)
def test_nvlink5(code: str, action: str, severity: str) -> None:
    entry = look_up("xid", code)
    assert (entry.action, entry.severity) == (action, severity)
    number, _, qualifier = code.partition("/")
    assert entry.rule == f"xid-{number}" + (f"-{qualifier}" if qualifier not in ("", "other") else "")
    assert "NVLink 5" in entry.reason
    assert entry.sources


def test_an_xid_that_eks_tells_of_is_answered_as_the_xid() -> None:
    for number in ("79", "13", "74"):
        told = look_up("node_condition", f"AcceleratedHardwareReady/NvidiaXID{number}Error", "p6-b200")
        assert told == look_up("xid", number, "p6-b200")
    warned = look_up("node_condition", "AcceleratedHardwareReady/NvidiaXID79Warning")
    assert (warned.action, warned.rule) == (Action.MONITOR, "eks-xid-warning")


@pytest.mark.parametrize(
    ("kind", "code", "action", "proof"),
    [
        ("gpu_ecc", "volatile_uncorrectable", "RESET", "one"),
        ("gpu_ecc", "aggregate_uncorrectable", "MONITOR", "one"),
        ("gpu_ecc", "sram_threshold_exceeded", "REPLACE", "one"),
        ("gpu_ecc", "retired_pages_pending", "REBOOT", "one"),
        ("gpu_remap", "pending", "RESET", "one"),
        ("gpu_remap", "failure", "REPLACE", "one"),
        ("gpu_missing", "count", "REBOOT", "one"),
        ("gpu_missing", "lost", "REPLACE", "one"),
        ("efa", "missing", "REBOOT", "one"),
        ("efa", "rdma_write_wr_err", "MONITOR", "one"),
        ("efa", "unresponsive_remote_events", "MONITOR", "one"),
        ("nvlink", "down", "RESET", "one"),
        ("nvlink", "crc", "MONITOR", "one"),
        ("neuron", "NC_UNCORRECTABLE_ERROR", "REPLACE", "sure"),
        ("neuron", "HANG_ON_COLLECTIVES", "MONITOR", "sure"),
        ("thermal", "hw_slowdown", "MONITOR", "one"),
        ("clock", "unsynchronized", "MONITOR", "one"),
        ("lustre", "evicted", "MONITOR", "one"),
        ("lustre", "mount_hung", "REBOOT", "one"),
        ("dcgm", "diag-3", "REPLACE", "one"),
        ("dcgm", "diag-2", "RESET", "one"),
        ("dcgm", "diag-1", "MONITOR", "one"),
        ("dcgm", "lost", "MONITOR", "one"),
        ("node_condition", "AcceleratedHardwareReady/NvidiaDoubleBitError", "RESET", "sure"),
        ("node_condition", "AcceleratedHardwareReady/NvidiaNVLinkError", "RESET", "sure"),
        ("node_condition", "AcceleratedHardwareReady/NeuronDMAError", "REPLACE", "sure"),
        ("node_condition", "AcceleratedHardwareReady/NvidiaFabricError", "REPLACE", "one"),
        ("node_condition", "AcceleratedHardwareReady/DCGMError", "MONITOR", "one"),
        ("node_condition", "AcceleratedHardwareReady/NvidiaThermalError", "MONITOR", "sure"),
        ("node_condition", "KernelReady/ForkFailedOutOfPIDs", "REBOOT", "sure"),
        ("node_condition", "KernelReady/SoftLockup", "MONITOR", "sure"),
        ("node_condition", "NetworkingReady/InterfaceNotUp", "REBOOT", "one"),
        ("node_condition", "NetworkingReady/EFAErrorMetric", "MONITOR", "one"),
        ("node_condition", "StorageReady/IODelays", "MONITOR", "sure"),
        ("node_condition", "ContainerRuntimeReady/PodStuckTerminating", "REBOOT", "one"),
        ("node_condition", "Ready/NodeStatusUnknown", "REBOOT", "one"),
        ("node_condition", "KernelReady/ForkFailedOutOfPIDs/unknown", "MONITOR", "one"),
        ("node_condition", "MemoryPressure/KubeletHasInsufficientMemory", "MONITOR", "sure"),
        ("node_condition", "NvidiaErrorTerminate/XidHardwareFailure", "REPLACE", "sure"),
        ("node_condition", "NvidiaErrorReboot/XidHardwareFailure", "REBOOT", "sure"),
        ("node_condition", "NvidiaErrorReboot/XidUserAppError", "MONITOR", "sure"),
        ("node_condition", "SomethingElse/Odd", "MONITOR", "sure"),
        ("node_health", "NvidiaErrorTerminate/replace", "REPLACE", "sure"),
        ("node_health", "NvidiaErrorReboot/reboot", "REBOOT", "sure"),
        ("node_health", "NvidiaErrorTerminate", "REPLACE", "sure"),
        ("node_health", "XidUserAppError/unhealthy", "MONITOR", "sure"),
        ("node_health", "silent", "REBOOT", "one"),
        ("status_check", "StatusCheckFailed_System/unknown", "MONITOR", "one"),
        ("spot_interruption", "terminate", "REPLACE", "sure"),
        ("state_change", "terminated", "REPLACE", "sure"),
        ("fallen_off_bus", "fallen_off_bus", "REPLACE", "sure"),
    ],
)
def test_other_faults(kind: str, code: str, action: str, proof: str) -> None:
    entry = look_up(kind, code)
    assert (entry.action, entry.proof) == (action, proof)


def test_a_single_observer_never_has_the_last_word() -> None:
    """What a probe counts is proof `one`, so that nothing destructive follows from it alone."""
    for kind, code, entry in tables.rules():
        if kind in probes() - {"fallen_off_bus", "neuron"}:
            assert entry.proof is Proof.ONE, (kind, code)


def test_what_a_probe_may_say() -> None:
    assert (
        {"xid", "sxid", "fallen_off_bus", "gpu_ecc", "efa", "neuron", "lustre", "dcgm"} <= probes() < kinds()
    )
    assert not probes() & {*Kind, "job", "node_ready", "health_issue"}
    assert "down" in codes("nvlink")
    assert codes("xid") == ()


def test_every_kind_has_an_answer() -> None:
    for kind in Kind:
        assert look_up(kind, "never heard of").action is Action.MONITOR or kind is Kind.SPOT_INTERRUPTION


def test_what_is_over_is_never_acted_on() -> None:
    for kind in (*Kind, *kinds() - {"xid", "sxid"}, "health_issue"):
        entry = look_up(kind, "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED/well")
        assert (entry.action, entry.severity) == (Action.MONITOR, Severity.INFO)


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.sampled_from(sorted(kinds())) | st.text(max_size=12),
    st.text(max_size=30),
    st.sampled_from(["", *FAMILIES]),
)
def test_there_is_an_answer_for_any_text(kind: str, code: str, family: str) -> None:
    entry = look_up(kind, code, family)
    assert isinstance(entry, Entry)
    assert entry.rule
    assert entry.reason


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("code,name\n", "xid.csv: the first line must be code,name,gpus"),
        (f"{XID}\n79,x,,EXPLODE,r,s\n", "xid.csv line 2: action must be one of MONITOR, RESET"),
        (f"{XID}\n79,x,,RESET,,s\n", "xid.csv line 2: reason is empty"),
        (f"{XID}\n79,x,,RESET,r,\n", "xid.csv line 2: sources is empty"),
        (f"{XID}\n79,x,,RESET,r\n", "xid.csv line 2: must have 6 fields"),
        (f"{XID}\n79,x,,RESET,a, b,s\n", "xid.csv line 2: must have 6 fields"),
        (f"{XID}\n79,x,K80,RESET,r,s\n", "xid.csv line 2: gpus must be of A100 H100 B100 GB200, not 'K80'"),
        (f"{XID}\nabc,x,,RESET,r,s\n", "xid.csv line 2: code must be a number, not 'abc'"),
        (f"{XID}\n79,x,,RESET,r,s\n79,x,,RESET,r,s\n", "xid.csv line 3: code 79 stands there twice"),
    ],
)
def test_a_broken_table_is_refused_with_its_place(content: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        numbered("xid.csv", content, XID)
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (f"{RULES}\n", "rules.csv: the last rule must be *,*"),
        (f"{RULES}\na,b,WILD,one,MONITOR,r,r,s\n{LAST}", "rules.csv line 2: severity must be one of INFO"),
        (
            f"{RULES}\na,b,INFO,two,MONITOR,r,r,s\n{LAST}",
            "rules.csv line 2: proof must be sure or one, not 'two'",
        ),
        (f"{RULES}\na,b,INFO,one,MONITOR,,r,s\n{LAST}", "rules.csv line 2: rule is empty"),
    ],
)
def test_broken_rules_are_refused_with_their_place(content: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        rules_of("rules.csv", content)
    assert str(refusal.value).startswith(sentence)


def test_broken_exceptions_and_gpus_are_refused_with_their_place() -> None:
    head = tables.EXCEPTIONS
    for content, sentence in (
        (f"{head}\n64,,RESET,r,s\n", "x.csv line 2: families is empty"),
        (f"{head}\n64,p4d p4d,RESET,r,s\n", "x.csv line 2: code 64 stands there twice for p4d"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            exceptions_of("x.csv", content)
    for content, sentence in (
        (
            f"{tables.GPUS}\np5,H100,K80,s\n",
            "g.csv line 2: catalog must be of A100 H100 B100 GB200, not 'K80'",
        ),
        (
            f"{tables.GPUS}\np5,H100,,s\np5,H100,,s\n",
            "g.csv line 3: family 'p5' is empty or stands there twice",
        ),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            gpus_of("g.csv", content)


SHARED = Path(__file__).parents[2].parent / "shared" / "catalog"
CITED = {
    "nvidia": "nvidia_immediate",
    "investigate": "nvidia_investigatory",
    "nvsentinel": "nvsentinel_action",
    "eks": "eks_nma",
    "adt": "adt_severity",
    "azure": "azure_nhc",
    "gcm": "gcm",
}
OWN = {"eks-guide", "hyperpod", "aws-skill"}
"""Sources that the side-by-side table has no column for."""


def shared(name: str) -> list[dict[str, str]]:
    if not SHARED.exists():
        pytest.skip("no shared catalogue here")
    with (SHARED / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cited(sources: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in sources.split("; "))


def test_every_xid_of_every_source_is_there_and_cited_word_for_word() -> None:
    ours = {row["code"]: row for row in rows("xid.csv")}
    theirs = {row["code"]: row for row in shared("xid_sources.csv")}
    assert set(ours) == set(theirs)
    for code, row in theirs.items():
        words = {source: row[column] for source, column in CITED.items()}
        words["gpud"] = f"{row['gpud_event']} {row['gpud_repair']}".strip()
        wanted = {
            source: word.replace("; ", ", ").replace("decode table (nvl5_decode.csv)", "decode table")
            for source, word in words.items()
            if word
        }
        found = {source: word for source, word in cited(ours[code]["sources"]).items() if source not in OWN}
        assert found == wanted, code
        products = [name for name in tables.PRODUCTS if row[name.lower()] == "YES"]
        assert ours[code]["gpus"].split() == products, code


def test_every_sxid_is_there_and_cited_word_for_word() -> None:
    ours = {row["code"]: row for row in rows("sxid.csv")}
    theirs = {row["sxid"]: row for row in shared("sxid.csv")}
    assert set(ours) == set(theirs)
    for code, row in theirs.items():
        assert cited(ours[code]["sources"]) == {
            "gpud": f"{row['gpud_event']} {row['gpud_repair']}".strip()
        }, code
        assert ours[code]["name"] == row["name"].replace("crubmstore", "crumbstore"), code
        acts = ours[code]["action"] != "MONITOR"
        assert acts == (row["gpud_event"] == "Fatal"), code


def test_every_row_of_the_nvlink5_table_is_there() -> None:
    theirs = [list(row.values()) for row in shared("nvlink5_decode.csv")]
    assert [list(row.values()) for row in rows("nvlink5.csv")] == theirs


def test_a_family_of_the_guide_is_read_from_an_instance_type() -> None:
    for family in FAMILIES:
        seen = read("NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.")
        assert seen is not None
        assert look_up(seen.kind, seen.meaning, family).action is Action.REPLACE


def test_sxid_columns() -> None:
    with pytest.raises(InvalidInput, match="severity must be one of"):
        numbered("sxid.csv", f"{SXID}\n1,x,BAD,RESET,r,s\n", SXID)
