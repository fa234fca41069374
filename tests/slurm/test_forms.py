"""Reading what Slurm prints: versions, JSON and text, and what must not be believed."""

import json
from pathlib import Path

import pytest

from planaria.core.errors import InvalidInput
from planaria.slurm import (
    holding,
    hostlist,
    jobs,
    json_form,
    marks,
    nodes,
    reasons,
    records,
    telling,
    text_form,
)
from planaria.slurm.programs import Done, Slurm, SlurmError, Unreadable, environment, run_program
from tests.slurm.programs import ANSWERS, JSON_VERSIONS, Recorded

ALL = tuple(f"demo-{number}" for number in range(1, 10))


@pytest.fixture(params=[*JSON_VERSIONS, "22.05 in text"])
def recorded(request: pytest.FixtureRequest) -> Recorded:
    version, _, text = request.param.partition(" ")
    return Recorded(version, with_json=not text)


def test_nodes_of_every_version(recorded: Recorded) -> None:
    found = nodes.read(recorded.slurm, [*ALL, "demo-77"])
    assert set(found) == set(ALL), "a node in state FUTURE is known, another name is not"
    states = {name: str(node.words.state) for name, node in found.items()}
    assert {name: states[name] for name in ALL[:6]} == {
        "demo-1": "ALLOCATED",
        "demo-2": "ALLOCATED",
        "demo-3": "DRAINED",
        "demo-4": "DRAINED",
        "demo-5": "DOWN",
        "demo-6": "ALLOCATED",
    }
    assert states["demo-9"] == "UNKNOWN"
    ours, foreign, lost = found["demo-3"], found["demo-4"], found["demo-5"]
    assert (ours.reason, ours.reason_by, ours.foreign) == ("planaria:i-3.7", "root", "")
    assert ours.mark == {"reason": ours.reason, "by": "root", "at": str(ours.reason_at)}
    assert ours.reason_at > 1_700_000_000
    assert foreign.foreign == foreign.reason == "disk = bad, ask ops"
    assert lost.words.flags == {"DRAIN"} and lost.foreign == ""
    assert found["demo-1"].address == "127.0.0.1"


def test_flags_of_later_versions() -> None:
    def state(version: str, name: str) -> str:
        return str(nodes.read(Recorded(version).slurm, [name])[name].words.state)

    assert state("23.02", "demo-7") == "UNKNOWN", "powered down"
    assert state("23.02", "demo-8") == "IDLE", "planned for a job, in service all the same"
    assert state("24.11", "demo-8") == "IDLE", "blocked by another job"
    assert state("25.05", "demo-8") == "UNKNOWN", "a flag that is not known here"


def test_jobs_of_every_version(recorded: Recorded) -> None:
    told = telling.tell_jobs(recorded.slurm, ["1", "2", "3_1", "3_2", "4", "4+1", "6", "99", "x"], [])
    assert told["99"] is None and told["x"] is None
    running, failed, task = told["1"], told["2"], told["3_2"]
    assert running is not None and failed is not None and task is not None
    assert running["state"] == "RUNNING"
    assert running["nodes"] == ["demo-2", "demo-1"], "in the order of the ranks that we handed over"
    assert (running["ranks_per_node"], running["attempt"], running["user"]) == (8, 1, "root")
    assert (running["name"], running["folder"]) == ("pretrain lr=0.1", "/fsx/u/run1")
    assert running["requeue"] is True and running["batch"] is True and running["end"] == 0.0
    assert (failed["state"], failed["exit_code"], failed["nodes"]) == ("FAILED", 3, ["demo-3"])
    assert failed["end"] >= failed["start"] > failed["submit"] - 1 > 1_700_000_000
    assert (task["state"], task["slurm_id"], task["attempt"]) == ("PENDING", "7", 0)
    assert told["3_1"] is not None and told["3_1"]["slurm_id"] == "3"
    assert told["4"] == told["4+1"], "a heterogeneous job is one job"
    assert told["6"] is not None
    assert (told["6"]["state"], told["6"]["exit_code"]) == ("COMPLETING", -15)


def test_a_job_that_slurm_put_on_hold_says_so() -> None:
    """Slurm 22.05 calls it held by its user, but for the description."""
    failed = Recorded("22.05")
    held = '"state_reason": "JobHeldUser"'
    failed.cut = lambda printed: printed.replace(
        held, f'{held}, "state_description": "launch failed requeued held"'
    )
    reasons_ = {job.head.reason for job in jobs.every(failed.slurm) if job.head.held}
    assert reasons_ == {"launch failed requeued held"}


def test_a_heterogeneous_job_is_its_components(recorded: Recorded) -> None:
    job = jobs.one(recorded.slurm, "4")
    assert job is not None
    assert [record.raw for record in job.records] == ["4", "5"]
    assert [record.node_count for record in job.records] == [1, 2]
    assert job.head.held and job.startable


def test_what_an_order_names(recorded: Recorded) -> None:
    """The last task of an array bears the number of the whole array: an order must not name that."""
    found = jobs.read(recorded.slurm, ["3_1", "3_2", "1"])
    assert [found[job].target for job in ("3_1", "3_2", "1")] == ["3_1", "3_2", "1"]


def test_jobs_on_nodes(recorded: Recorded) -> None:
    assert telling.tell_jobs_on(recorded.slurm, ["demo-1", "demo-3", "demo-6", "demo-77"]) == {
        "demo-1": ["1"],
        "demo-3": [],
        "demo-6": ["6"],
        "demo-77": [],
    }
    found = telling.tell_jobs(recorded.slurm, [], ["demo-1", "demo-3"])
    assert set(found) == {"1", "2"}, "also the one that failed there"


@pytest.mark.parametrize("version", JSON_VERSIONS)
@pytest.mark.parametrize("keep", [0, 1, 200, 3000, -2, -200])
def test_a_cut_answer_is_an_error_and_never_an_empty_one(version: str, keep: int) -> None:
    recorded = Recorded(version)
    recorded.cut = lambda printed: printed[:keep]
    for ask in (
        lambda: nodes.read(recorded.slurm, ["demo-1"]),
        lambda: jobs.every(recorded.slurm),
        lambda: telling.tell_nodes(recorded.slurm, ["demo-1"]),
        lambda: telling.tell_jobs_on(recorded.slurm, ["demo-1"]),
    ):
        with pytest.raises(Unreadable):
            ask()


def test_a_cut_line_of_text_is_an_error() -> None:
    recorded = Recorded("22.05", with_json=False)
    recorded.cut = lambda printed: printed[:300]
    with pytest.raises(Unreadable, match="it is cut"):
        nodes.read(recorded.slurm, ["demo-1"])
    recorded.cut = lambda printed: printed[:30]
    with pytest.raises(Unreadable, match="is cut"):
        jobs.every(recorded.slurm)


@pytest.mark.parametrize("name", ["x JobState=COMPLETED", "a\nb"])
def test_a_name_made_to_confuse_hides_no_job(name: str) -> None:
    """Of its own job no more is known than where it is; every other job is read as ever."""
    recorded = Recorded("22.05", with_json=False)
    recorded.cut = lambda printed: printed.replace("pretrain lr=0.1", name)
    assert telling.tell_jobs_on(recorded.slurm, ["demo-1", "demo-6"]) == {"demo-1": ["1"], "demo-6": ["6"]}
    told = telling.tell_jobs(recorded.slurm, ["1", "2"], [])
    assert told["1"] is not None and told["2"] is not None
    assert (told["1"]["state"], told["1"]["requeue"], told["1"]["batch"]) == ("RUNNING", False, False)
    assert told["2"]["exit_code"] == 3


def test_an_error_inside_of_json_with_status_0_is_an_error() -> None:
    """Recorded from squeue while slurmctld was away."""
    recorded = Recorded("22.05")
    away = (ANSWERS / "22.05/controller_away.json").read_text()
    recorded.cut = lambda printed: away
    with pytest.raises(Unreadable, match="Failed while looking for jobs"):
        jobs.every(recorded.slurm)
    with pytest.raises(Unreadable, match="tells of an error"):
        nodes.read(recorded.slurm, ["demo-1"])


def test_an_unknown_state_of_a_job_is_an_error() -> None:
    """It may have processes, or none: nobody can tell."""
    recorded = Recorded("24.05")
    recorded.cut = lambda printed: printed.replace('"RUNNING"', '"DREAMING"')
    with pytest.raises(Unreadable, match="state DREAMING"):
        telling.tell_jobs_on(recorded.slurm, ["demo-1"])


def test_a_node_without_a_state_is_an_error() -> None:
    recorded = Recorded("24.05")
    recorded.cut = lambda printed: printed.replace('"state":', '"station":')
    with pytest.raises(Unreadable, match="without a name or a state"):
        nodes.read(recorded.slurm, ["demo-1"])


def test_a_program_that_fails_is_told_of() -> None:
    recorded = Recorded("22.05")
    recorded.failing = {"squeue": "squeue: error: Unable to contact slurm controller (connect failure)\n"}
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        jobs.every(recorded.slurm)


def test_a_reservation_list_without_a_word_is_no_free_cluster() -> None:
    recorded = Recorded("22.05")
    assert holding.held(recorded.slurm) == {}
    recorded.cut = lambda printed: ""
    with pytest.raises(Unreadable):
        holding.held(recorded.slurm)


def test_a_name_that_plays_a_key_makes_the_line_unreadable() -> None:
    line = (ANSWERS / "22.05/scontrol_job.txt").read_text().splitlines()[0]
    what, needed = "the job", ("NodeList",)
    told = text_form.fields(line, records.TEXT_KEYS, needed, what)
    assert told["JobName"] == "pretrain lr=0.1"
    assert told["Comment"] == "mine planaria?folder=/fsx/u/run1&ranks_per_node=8"
    assert told["NodeList"] == "demo-[1-2]"
    played = line.replace("lr=0.1", "NodeList=demo-8")
    with pytest.raises(Unreadable, match="NodeList twice"):
        text_form.fields(played, records.TEXT_KEYS, needed, what)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        ({"set": True, "infinite": False, "number": 5}, 5),
        ({"set": False, "infinite": False, "number": 5}, None),
        ({"set": True, "infinite": True, "number": 5}, None),
        (0xFFFFFFFE, None),
        (-2, None),
        (None, None),
        ("5", None),
    ],
)
def test_numbers(value: object, number: int | None) -> None:
    assert json_form.number({"n": value}, "n") == number


@pytest.mark.parametrize("printed", ["", "[]", "null", '{"errors": []}', '{"nodes": 5}', '{"nodes": [5]}'])
def test_json_of_another_shape_is_an_error(printed: str) -> None:
    with pytest.raises(Unreadable):
        json_form.rows(printed, "nodes", "it")


def test_versions() -> None:
    for printed, version in (("slurm 24.05.3\n", (24, 5)), ("slurm-wlm 22.05.8\n", (22, 5))):
        assert _says(printed).version() == version
    with pytest.raises(Unreadable):
        _says("slurm of today\n").version()


def _says(said: str) -> Slurm:
    return Slurm(lambda arguments, seconds: Done(0, said, ""))


# --- host lists, marks and reasons -----------------------------------------------------------------


def test_host_lists() -> None:
    assert hostlist.expand("p5-[008-010,12],login1") == ["p5-008", "p5-009", "p5-010", "p5-12", "login1"]
    assert hostlist.expand("r[0-1]n[1-2]") == ["r0n1", "r0n2", "r1n1", "r1n2"]
    assert hostlist.expand("") == []
    assert hostlist.compress(["a9", "a10", "a12", "b01", "b02"]) == "a[9-10],a12,b[01-02]"
    names = [f"p5-{number:03d}" for number in (3, 4, 5, 9, 1)]
    assert hostlist.expand(hostlist.compress(names)) == names, "the order is that of the ranks"
    for wrong in ("a[1-2", "a]1[", "a[2-1]", "a[x]", "a b", "a;b", "a[1-99999999]", "[[1]]"):
        with pytest.raises(InvalidInput):
            hostlist.expand(wrong)


def test_marks_keep_what_others_wrote() -> None:
    comment = marks.write("ask ops", {"node": "i-1", "nodes": "a,b", "odd": "x y&z=+%"})
    assert comment.startswith("ask ops planaria?node=i-1&nodes=a%2Cb")
    assert len(comment.split()) == 3, "one word, whatever is in it"
    assert marks.read(comment) == {"node": "i-1", "nodes": "a,b", "odd": "x y&z=+%"}
    assert marks.write(comment, {}) == "ask ops"
    assert marks.read("xplanaria?node=i-1") == marks.read("") == {}
    assert marks.read("planaria?a=1 planaria?a=2") == {}, "nobody can tell which is ours"


def test_whose_reason_it_is() -> None:
    assert reasons.is_ours("planaria:i-0abc.17")
    assert not reasons.is_ours("planaria:i-0abc.17 keep it"), "a person has made it theirs"
    for own in (
        "Not responding",
        "Kill task failed",
        "Prolog error",
        "Low RealMemory (reported:1 < 100.00% of configured:2)",
        "gres/gpu count reported lower than configured (0 < 8)",
        "Node unexpectedly rebooted",
        "Low CPUs, gres/gpu count too low (0 < 8)",
    ):
        assert reasons.is_slurms(own), own
    for person in (
        *("new disks", "prolog", "planaria:x", "", "kill this one", "INVALID cable", "gres/gpu broken"),
        *("Not responding to my bmc, keep out -- ada", "Kill task failed twice, RMA, do not use"),
    ):
        assert not reasons.is_slurms(person), person


@pytest.mark.parametrize(("writer", "foreign"), [("ada", True), ("slurmadm", False), ("root", False)])
def test_slurms_words_from_a_person_are_a_persons(writer: str, foreign: bool) -> None:
    recorded = Recorded("24.05")
    recorded.cut = lambda printed: printed.replace("disk = bad, ask ops", "Kill task failed").replace(
        '"reason_set_by_user": "root"', f'"reason_set_by_user": "{writer}"'
    )
    found = nodes.read(recorded.slurm, ["demo-4"])["demo-4"].foreign
    assert found == ("Kill task failed" if foreign else "")


def test_a_node_that_lost_its_reason_is_ours_by_our_note() -> None:
    """Slurm 22.05 drops the reason of a FUTURE node when its slurmd registers."""
    recorded = Recorded("24.05")
    recorded.cut = lambda printed: printed.replace('"reason": "planaria:i-3.7"', '"reason": ""').replace(
        '"reason": "disk = bad, ask ops"', '"reason": ""'
    )
    found = nodes.read(recorded.slurm, ["demo-3", "demo-4"])
    assert (found["demo-3"].foreign, found["demo-4"].foreign) == ("", "drained without a reason")


# --- programs ----------------------------------------------------------------------------------------


def test_what_a_program_is_given() -> None:
    given = environment(
        {"PATH": "/x", "SLURM_CONF": "/c", "SQUEUE_FORMAT": "%i", "SLURM_CLUSTERS": "b", "HOME": "/h"}
    )
    assert given["PATH"].startswith("/x:") and "/opt/slurm/bin" in given["PATH"]
    assert given["SLURM_CONF"] == "/c" and given["HOME"] == "/h"
    assert not {"SQUEUE_FORMAT", "SLURM_CLUSTERS"} & set(given)
    assert given["SLURM_TIME_FORMAT"] == "%s" and given["LC_ALL"] == "C"


def test_a_program_that_hangs_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "scontrol"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SlurmError, match="did not answer within 0 s"):
        run_program(["scontrol"], 0.2)
    with pytest.raises(SlurmError, match="head node"):
        run_program(["no-such-program-of-slurm"], 1.0)


def test_recorded_answers_are_json() -> None:
    for version in JSON_VERSIONS:
        for name in ("nodes.json", "jobs.json"):
            assert json.loads((ANSWERS / version / name).read_text())["errors"] == []
