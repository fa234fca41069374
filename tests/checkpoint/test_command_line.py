"""`python -m planaria.checkpoint`: one JSON line, whatever happens."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planaria.checkpoint.command_line import list_steps, main
from planaria.checkpoint.directory import FileCheckpoints
from planaria.core.manifest import FILE_NAME, Lineage, Manifest, digest
from planaria.core.pins import Pin
from planaria.core.saved_step import StepCopy
from tests.checkpoint import foreign
from tests.checkpoint.steps import JOB, flip, manifest, write

LONG_AGO = 1_700_000_000.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "check points"
    folder.mkdir()
    return folder


@pytest.fixture
def store(root: Path) -> FileCheckpoints:
    return FileCheckpoints(root, JOB)


def save(store: FileCheckpoints, step: int, **facts: Any) -> Path:
    path = write(Path(store.place(f"step-{step}")))
    store.commit(manifest(step, **facts))
    return path


def told(capsys: pytest.CaptureFixture[str], root: Path, verb: str, *options: str, status: int = 0) -> Any:
    assert main([verb, f"--job={JOB}", f"--directory={root}", *options]) == status
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def steps_of(answer: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each["step"], each["state"]) for each in answer["steps"]]


def test_list_is_newest_first_and_bounded(
    root: Path, store: FileCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    save(store, 900, attempt=1)
    save(store, 20, attempt=2, parent=10)
    write(root / "step-25", foreign.dcp())
    (root / "step-30.tmp").mkdir()
    answer = told(capsys, root, "list", "--read-gib=1")
    assert steps_of(answer) == [(30, "partial"), (25, "foreign"), (20, "complete"), (900, "complete")]
    assert (answer["more"], answer["verified"]) == (0, True)
    entry = answer["steps"][2]
    assert (entry["directory"], entry["job"], entry["attempt"], entry["parent_step"]) == (
        "step-20",
        JOB,
        2,
        10,
    )
    assert answer["steps"][1]["sealable"] is True
    answer = told(capsys, root, "list", "--most=1")
    assert (steps_of(answer), answer["more"]) == ([(30, "partial")], 3)


def test_list_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, tmp_path / "none", "list") == {"steps": [], "more": 0, "verified": False}


def test_list_reads_the_newest_step_whole(store: FileCheckpoints) -> None:
    for step in (10, 20, 30, 40):
        save(store, step)
    for step in (40, 30, 10):
        flip(Path(store.place(f"step-{step}")) / "model.bin")
    assert steps_of(list_steps(store))[0] == (40, "complete"), "it reads nothing unasked"
    answer = list_steps(store, verify_bytes=1 << 30)
    assert steps_of(answer) == [(40, "corrupt"), (30, "corrupt"), (20, "complete"), (10, "complete")]
    assert answer["verified"] is True


def test_list_reads_no_more_than_it_may(store: FileCheckpoints) -> None:
    size = manifest(10).size
    for step in (10, 20, 30):
        flip(save(store, step) / "model.bin")
    answer = list_steps(store, verify_bytes=2 * size)
    assert steps_of(answer) == [(30, "corrupt"), (20, "corrupt"), (10, "complete")]
    assert answer["verified"] is False


def test_verify_one_step(root: Path, store: FileCheckpoints, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(store, 10)
    assert told(capsys, root, "verify", "--step=step-10")["state"] == "complete"
    flip(path / "model.bin")
    assert told(capsys, root, "verify", "--step=step-10")["state"] == "corrupt"
    assert "no step's directory" in told(capsys, root, "verify", "--step=step-20", status=1)["reason"]


def test_seal(root: Path, store: FileCheckpoints, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(root / "iter_0000500", foreign.dcp())
    options = ("--step=iter_0000500", "--attempt=3", "--parent=400", "--world-size=16")
    answer = told(capsys, root, "seal", *options)
    assert (answer["state"], answer["shards"]) == ("complete", 3)
    sealed = Manifest.from_json((path / FILE_NAME).read_bytes())
    assert (sealed.step, sealed.lineage, sealed.world_size) == (500, Lineage(JOB, 3, 400), 16)
    assert told(capsys, root, "seal", *options)["digest"] == answer["digest"]


def test_two_programs_that_seal_at_once_agree(root: Path) -> None:
    write(root / "step-500", foreign.dcp())
    options = [f"--job={JOB}", f"--directory={root}", "--step=step-500"]
    command = [sys.executable, "-m", "planaria.checkpoint", "seal", *options]
    home = Path(__file__).parents[2]
    running = [
        subprocess.Popen(
            [*command, f"--attempt={attempt}"], cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for attempt in (1, 1, 2)
    ]
    ended = [each.communicate() for each in running]
    assert [error for _, error in ended] == [b"", b"", b""]
    written = digest((root / "step-500" / FILE_NAME).read_bytes())
    told = [json.loads(output) for output, _ in ended]
    for each in told:
        assert each.get("digest", written) == written
        assert each.get("state") == "complete" or "is not overwritten" in each["reason"]


def test_seal_with_checksums_from_elsewhere(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = foreign.dcp()
    write(root / "step-10", files)
    told_elsewhere = {shard.name: (shard.size, shard.crc64nvme) for shard in manifest(10, files).shards}
    sums = tmp_path / "sums.json"
    sums.write_text(json.dumps({n: {"size": s, "crc64nvme": c} for n, (s, c) in told_elsewhere.items()}))
    assert told(capsys, root, "seal", "--step=step-10", f"--sums={sums}")["state"] == "complete"
    assert told(capsys, root, "verify", "--step=step-10")["state"] == "complete"
    sums.write_text("[]")
    write(root / "step-20", files)
    assert (
        "no checksums" in told(capsys, root, "seal", "--step=step-20", f"--sums={sums}", status=1)["reason"]
    )


def test_seal_says_what_cannot_be_sealed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (write(root / "step-10", foreign.dcp()) / "__0_0.distcp").unlink()
    assert told(capsys, root, "seal", "--step=step-10")["state"] == "partial"
    write(root / "step-20", {"notes": b"1"})
    assert told(capsys, root, "seal", "--step=step-20")["state"] == "foreign"
    write(root / "step-30", foreign.safetensors())
    assert "being written" in told(capsys, root, "seal", "--step=step-30")["reason"]
    assert told(capsys, root, "seal", "--step=step-30", "--quiet=0")["state"] == "complete"
    write(root / "step-40", {FILE_NAME: manifest(40, job="job-2").to_json(), **foreign.dcp()})
    assert told(capsys, root, "seal", "--step=step-40")["state"] == "foreign"


def test_settle_checks_every_byte_first(
    root: Path, store: FileCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = write(root / "step-10.restore.tmp")
    store.commit(manifest(10), scratch.name)
    flip(scratch / "model.bin")
    options = ("--step=step-10", "--scratch=step-10.restore.tmp")
    assert told(capsys, root, "settle", *options)["state"] == "corrupt"
    assert os.listdir(root) == ["step-10.restore.tmp"]
    flip(scratch / "model.bin")
    answer = told(capsys, root, "settle", *options)
    assert answer["state"] == "complete" and os.listdir(root) == ["step-10"]
    assert told(capsys, root, "settle", *options) == answer


def test_remove_takes_the_named_copies_alone(
    root: Path, store: FileCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    save(store, 10)
    save(store, 20, attempt=2)
    save(store, 30)
    store.pin(found(store, "step-30"), Pin("for the paper", "kim", 1.0))
    answer = told(capsys, root, "remove", "--steps=1:10,1:20,1:30,4:40")
    assert answer["removed"] == [{"attempt": a, "step": s} for a, s in ((1, 10), (1, 20), (4, 40))]
    assert answer["left"] == [{"attempt": 1, "step": 30, "reason": "it is pinned: for the paper"}]
    assert sorted(os.listdir(root)) == ["step-20", "step-30"]


def found(store: FileCheckpoints, name: str) -> StepCopy:
    copy = store.look(name)
    assert copy is not None
    return copy


def test_sweep(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("step-10.tmp", "step-20.tmp"):
        path = write(root / name)
        for each in (path, *path.rglob("*")):
            os.utime(each, (LONG_AGO, LONG_AGO))
    (root / "step-30.tmp").mkdir()
    answer = told(capsys, root, "sweep", "--hours=24", "--active=step-20")
    assert answer == {"removed": ["step-10.tmp"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "required: verb"),
        (["nope"], "invalid choice"),
        (["list"], "--job"),
        (["list", "--job=", "--directory=/x"], "must not be empty"),
        (["list", "--job=j", "--directory=relative"], "no absolute path"),
        (["list", "--job=j", "--directory=/x", "--most=-1"], "no whole number"),
        (["list", "--job=j", "--directory=/x", "--more=1"], "unrecognized"),
        (["remove", "--job=j", "--directory=/x", "--steps=12"], "no whole number"),
        (["verify", "--job=j", "--directory=/x", "--step=../y"], "no name of a step"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(arguments) == 1
    output = capsys.readouterr()
    assert words in json.loads(output.out)["reason"]
    assert output.err == ""


def test_as_a_program(root: Path, store: FileCheckpoints) -> None:
    save(store, 10)
    command = [sys.executable, "-m", "planaria.checkpoint", "list", f"--job={JOB}", f"--directory={root}"]
    home = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True)
    assert steps_of(json.loads(ended.stdout)) == [(10, "complete")]
    assert ended.stderr == ""
