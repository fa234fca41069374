import csv

import pytest

from planaria.core.catalog import look_up, numbered, rules_of, text
from planaria.core.errors import InvalidInput
from planaria.core.fault import Action, Severity
from planaria.core.signal import Kind

XID = "code,name,gpus,action,reason,sources"
RULES = "kind,code,severity,action,rule,reason,sources"
LAST = "*,*,INFO,MONITOR,unknown-kind,because,design\n"


def test_the_files_are_sound() -> None:
    assert len(numbered("xid.csv", text("xid.csv"), XID)) == 172
    assert len(numbered("sxid.csv", text("sxid.csv"), "code,name,severity,action,reason,sources")) == 92
    assert set(
        numbered("xid_exceptions.csv", text("xid_exceptions.csv"), "code,families,action,reason,sources")
    )
    assert rules_of("rules.csv", text("rules.csv"))


@pytest.mark.parametrize(
    "code", [79, 74, 48, 63, 64, 92, 94, 95, 109, 136, 68, 69, 121, 54, 142, 61, 62, 46, 151]
)
def test_where_sources_disagree_the_reason_names_them(code: int) -> None:
    entry = look_up("xid", str(code))
    assert entry.rule == f"xid-{code}"
    assert len(entry.reason) > 30
    assert entry.sources.count("=") >= 4


def test_application_faults_never_remove_a_node() -> None:
    rows = csv.DictReader(text("xid.csv").splitlines())
    for row in rows:
        if "nvidia=RESTART_APP" in row["sources"] or "nvidia=IGNORE" in row["sources"]:
            assert row["action"] == "MONITOR", row["code"]


def test_every_kind_has_an_answer() -> None:
    for kind in Kind:
        assert look_up(kind, "never heard of").action is Action.MONITOR or kind is Kind.SPOT_INTERRUPTION


def test_what_is_over_is_never_acted_on() -> None:
    for kind in (*Kind, "health_issue"):
        entry = look_up(kind, "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED/well")
        assert (entry.action, entry.severity) == (Action.MONITOR, Severity.INFO)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("code,name\n", "xid.csv: the first line must be code,name,gpus"),
        (f"{XID}\n79,x,,EXPLODE,r,s\n", "xid.csv line 2: action must be one of MONITOR, RESET"),
        (f"{XID}\n79,x,,RESET,,s\n", "xid.csv line 2: reason is empty"),
        (f"{XID}\n79,x,,RESET,r,\n", "xid.csv line 2: sources is empty"),
        (f"{XID}\n79,x,,RESET,r\n", "xid.csv line 2: must have 6 fields"),
        (f"{XID}\n79,x,,RESET,a, b,s\n", "xid.csv line 2: must have 6 fields"),
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
        (f"{RULES}\na,b,WILD,MONITOR,r,r,s\n{LAST}", "rules.csv line 2: severity must be one of INFO"),
        (f"{RULES}\na,b,INFO,MONITOR,,r,s\n{LAST}", "rules.csv line 2: rule is empty"),
    ],
)
def test_broken_rules_are_refused_with_their_place(content: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        rules_of("rules.csv", content)
    assert str(refusal.value).startswith(sentence)
