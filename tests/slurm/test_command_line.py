"""`python -m planaria.slurm`: one JSON line, whatever is asked."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planaria.core.documents import documents
from planaria.core.errors import InvalidInput, PermanentError
from planaria.core.topology_conf import packed
from planaria.slurm import alone, command_line, handover
from tests.slurm.programs import Recorded

ROOT = Path(__file__).resolve().parents[2]


def ask(capsys: pytest.CaptureFixture[str], recorded: Recorded, *arguments: str) -> dict[str, Any]:
    assert command_line.main(arguments, recorded.slurm) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("\n") and printed.count("\n") == 1
    document: dict[str, Any] = json.loads(printed)
    assert document["version"] == 1
    assert len(document) == 2
    return document


def test_an_answer_is_one_line_of_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, Recorded("24.05"), "node", "--nodes=demo-[1-2],demo-77")
    assert document["value"] == {
        "demo-1": {"state": "ALLOCATED", "node_id": "", "reason": "", "jobs": ["1"]},
        "demo-2": {"state": "ALLOCATED", "node_id": "", "reason": "", "jobs": ["1"]},
        "demo-77": {"state": "UNKNOWN", "node_id": "", "reason": "no node demo-77", "jobs": []},
    }


def test_a_foreign_hold_and_an_unknown_node_are_words_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded = Recorded("24.11")
    entries = "--entries=demo-4=planaria:i-4.1,demo-77=planaria:i-4.2"
    for verb in ("isolate", "lost", "readmit"):
        assert ask(capsys, recorded, verb, entries)["value"] == {
            "demo-4": "FOREIGN: disk = bad, ask ops",
            "demo-77": "UNKNOWN: no node demo-77",
        }
    assert recorded.orders == []


def test_a_node_with_an_unknown_flag_is_drained_and_never_set_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    recorded = Recorded("25.05")
    word = ask(capsys, recorded, "lost", "--entries=demo-8=planaria:i-8.1")["value"]["demo-8"]
    assert word.startswith("UNKNOWN: demo-8 is IDLE+A_FLAG_OF_LATER, which is not known here")
    assert [order for order in recorded.orders if "State=DOWN" in order] == []
    assert [order for order in recorded.orders if "State=DRAIN" in order] != []


def test_an_isolation_that_slurm_does_not_show_is_not_confirmed(capsys: pytest.CaptureFixture[str]) -> None:
    word = ask(capsys, Recorded("24.05"), "isolate", "--entries=demo-1=planaria:i-1.1")["value"]["demo-1"]
    assert word.startswith("UNKNOWN: demo-1 is MIXED after the order")


def test_nodes_in_doubt_are_not_placed(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, Recorded("25.05"), "place", "--job=9", "--count=9")["value"] == {"9": []}
    assert ask(capsys, Recorded("24.11"), "place", "--job=9", "--count=9")["value"] == {"9": []}, "BLOCKED"
    assert ask(capsys, Recorded("23.11"), "place", "--job=9", "--count=9")["value"] == {"9": ["demo-8"]}
    recorded = Recorded("23.11")
    recorded.reservations = (
        "ReservationName=planaria_1 StartTime=1 EndTime=2 Nodes=demo-[7-8] NodeCnt=2 State=ACTIVE\n"
    )
    assert ask(capsys, recorded, "place", "--job=9", "--count=9")["value"] == {"9": []}
    recorded.reservations = recorded.reservations.replace("planaria_1", "planaria_9")
    assert ask(capsys, recorded, "place", "--job=9", "--count=9")["value"] == {"9": ["demo-8"]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: verb"),
        (["shutdown"], "invalid choice: 'shutdown'"),
        (["jobs-on"], "required: --nodes"),
        (["jobs-on", "--nodes="], "no node is named"),
        (["node", "--nodes=a;b"], "'a;b' is no name of a node"),
        (["node", "--nodes=a[2-1]"], "is no range of numbers"),
        (["jobs-on", "--node=a"], "required: --nodes"),
        (["node", "--node=a"], "unrecognized arguments: --node=a"),
        (["node", "--nodes=a", "--force=1"], "unrecognized arguments: --force=1"),
        (["isolate", "--entries=a"], "give name=planaria:<incident>"),
        (["isolate", "--entries=a=new disks"], "is no reason of ours"),
        (["join", "--name=a", "--node-id=x", "--reason=planaria:1"], "'x' is no instance id"),
        (["stop", "--jobs=1", "--signal=9", "--grace=1"], "'9' is no signal"),
        (["stop", "--jobs=1;2", "--signal=TERM", "--grace=1"], "is no job id"),
        (["hold", "--job=1", "--nodes=a", "--seconds=-1"], "is no number of seconds"),
        (["requeue", "--job=1", "--nodes=a", "--attempt=x", "--resume-step=1"], "is no whole number"),
        (["requeue", "--job=1", "--nodes=a", "--attempt=2", "--resume-step=-2"], "is no step"),
        (["requeue", "--job=1", "--attempt=2", "--resume-step=-1", "--kept=../x"], "is no absolute path"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], sentence: str
) -> None:
    error = ask(capsys, Recorded("22.05"), *arguments)["error"]
    assert sentence in error
    assert "\n" not in error and "Traceback" not in error


def test_an_empty_list_of_nodes_is_refused_like_by_the_twin(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["requeue", "--job=1", "--nodes=", "--attempt=2", "--resume-step=-1"]
    word = ask(capsys, Recorded("24.05"), *asked)["value"]["1"]
    assert word == "REFUSED: the list of nodes is empty or names one twice"


def test_a_cut_answer_of_slurm_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    recorded = Recorded("24.05")
    recorded.cut = lambda printed: printed[:500]
    assert "is cut" in ask(capsys, recorded, "jobs-on", "--nodes=demo-1")["error"]
    recorded.failing = {"scontrol": "slurm_load_node error: Unable to contact slurm controller\n"}
    assert "Unable to contact" in ask(capsys, recorded, "node", "--nodes=demo-1")["error"]


def test_a_long_answer_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """SSM shows the first 24,000 characters; the adapter reads the rest from the bucket."""
    value = ask(capsys, Recorded("24.05"), "node", "--nodes=x[1-999]")["value"]
    assert len(value) == 999 and len(json.dumps(value)) > 24_000


def test_every_document_of_the_head_node_is_a_verb() -> None:
    parser = command_line._parser()
    values = {
        "Nodes": "demo-1",
        "Entries": "demo-1=planaria:i-1.1",
        "Name": "demo-1",
        "NodeId": "i-1",
        "Address": "",
        "Reason": "planaria:i-1.1",
        "Jobs": "1",
        "Job": "1",
        "Signal": "TERM",
        "Kept": "",
        "Grace": "2.0",
        "Seconds": "60.0",
        "Sent": "1796071156",
        "Attempt": "2",
        "ResumeStep": "-1",
        "Count": "1",
        "Paths": packed({"demo-1": ("nn-1", "nn-2", "nn-3")}),
    }
    seen = set()
    for name, document in documents().items():
        if document.module != "planaria.slurm":
            continue
        given = {each: values[each] for each in document.parameters}
        words = document.arguments(given)[2:]
        options = vars(parser.parse_args(words))
        seen.add(options["verb"])
        assert {
            each.option.removeprefix("--").replace("-", "_") for each in document.parameters.values()
        } <= set(options), name
    assert seen >= {
        "node",
        "isolate",
        "lost",
        "readmit",
        "join",
        "jobs-on",
        "jobs",
        "stop",
        "hold",
        "requeue",
        "place",
    }


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planaria.slurm", "shutdown"],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "invalid choice: 'shutdown'" in json.loads(done.stdout)["error"]


# --- what is handed to a job, and one command at a time ----------------------------------------------


def test_a_link_in_the_jobs_folder_leads_nowhere(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "hostfile").symlink_to(target)
    (folder / f".resume.json.{os.getpid()}").symlink_to(target)
    with pytest.raises(PermanentError, match="cannot be written"):
        handover.hand_over(str(folder), "root", ["a"], 2, {"version": 1})
    assert target.read_text() == "mine"
    assert (folder / "hostfile").read_text() == "a\na\n"
    assert not (folder / "hostfile").is_symlink(), "replaced, not followed"


@pytest.mark.parametrize("folder", ["relative", "/a/../etc", "/with blank", ""])
def test_only_a_plain_absolute_folder_is_used(folder: str) -> None:
    with pytest.raises(PermanentError, match="absolute path"):
        handover.hand_over(folder, "root", ["a"], 1, {})


def test_a_folder_that_is_missing_or_of_an_unknown_user_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="No such file"):
        handover.hand_over(str(tmp_path / "none"), "root", ["a"], 1, {})
    if os.geteuid() == 0:
        with pytest.raises(PermanentError, match="knows this user"):
            handover.hand_over(str(tmp_path), "nobody-of-that-name", ["a"], 1, {})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for others")
def test_files_are_written_with_the_users_own_rights(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(PermanentError, match="Permission denied"):
        handover.hand_over(str(closed), "nobody", ["a"], 1, {})
    assert os.geteuid() == 0, "and root is root again"


def test_a_second_command_for_one_job_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(alone, "folder", lambda: tmp_path)
    slurm = Recorded("22.05").slurm
    with alone.alone(slurm, "12") as first, alone.alone(slurm, "12", 0.3) as second:
        assert (first, second) == (True, False)
        with alone.alone(slurm, "13") as other:
            assert other
    with alone.alone(slurm, "12") as again:
        assert again


def test_the_folder_of_locks_must_be_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    open_to_all = tmp_path / "planaria"
    open_to_all.mkdir()
    open_to_all.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    monkeypatch.setattr(alone, "Path", lambda name: open_to_all)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(PermanentError, match="not ours alone"):
        alone.folder()


def test_a_wrong_offset_of_clocks_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from planaria.slurm import starting

    monkeypatch.setenv(starting.CLOCK_OFFSET_VARIABLE, "much")
    with pytest.raises(PermanentError, match="must be a number of seconds"):
        starting._clock_offset()
    monkeypatch.setenv(starting.CLOCK_OFFSET_VARIABLE, "1.5")
    assert starting._clock_offset() == 1.5
    assert issubclass(InvalidInput, PermanentError)
