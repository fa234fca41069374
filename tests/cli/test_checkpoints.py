"""`planaria checkpoints` on directories."""

import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from planaria.checkpoint.directory import FileCheckpoints
from planaria.cli import bars, screen
from tests.cli.checkpoint_bed import FILES, flip, save, size
from tests.cli.conftest import Answer, Bench

SHARD = "__0_0.distcp"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "a folder with blanks, größer" / "gpt"
    made.mkdir(parents=True)
    return made


def run(bench: Bench, *words: object) -> Answer:
    return bench.run("checkpoints", *(str(word) for word in words))


def chosen(bench: Bench, root: Path) -> int | None:
    found = [one["step"] for one in run(bench, "list", root, "--json").json if one["chosen"]]
    assert len(found) <= 1
    return found[0] if found else None


# --- list --------------------------------------------------------------------------------------------


def test_list_for_scripts(bench: Bench, root: Path) -> None:
    save(root, 100)
    directory = save(root, 200, parent=100)
    newest, older = run(bench, "list", root, "--json").json
    assert newest == {
        "step": 200,
        "state": "complete",
        "reason": "",
        "bytes": size(),
        "lineage": {"job": "gpt", "attempt": 1, "parent_step": 100},
        "tiers": ["fsx"],
        "chosen": True,
        "saved_at": "2026-11-02T09:03:20.000Z",
        "pinned": None,
        "copies": [
            {"tier": "fsx", "state": "complete", "reason": "", "bytes": size(), "place": str(directory)}
        ],
    }
    assert (older["step"], older["chosen"]) == (100, False)


def test_list_for_people(bench: Bench, root: Path) -> None:
    save(root, 100)
    save(root, 200, parent=100)
    (root / "step-300.tmp").mkdir()
    answer = run(bench, "list", root)
    assert answer.status == 0
    for words in ("STEP", "200", "complete", "10.8 KiB", "100", "start", "partial"):
        assert words in answer.out, words
    assert re.search(r"→ +200 +complete", answer.out)
    assert "→ a resume takes step 200" in answer.out
    assert "passed over: step 300 is partial" in " ".join(answer.out.split())


def test_every_bad_state_is_listed_with_its_reason_and_not_chosen(bench: Bench, root: Path) -> None:
    save(root, 100)
    cut = save(root, 200) / SHARD
    cut.write_bytes(cut.read_bytes()[:-1])
    (save(root, 300) / SHARD).unlink()
    (save(root, 400) / "planaria-manifest.json").unlink()
    (save(root, 500) / "planaria-manifest.json").write_bytes(b"{")
    save(root, 600, job="llama")
    (root / "step-700").mkdir()
    save(root, 800, name="step-800.tmp")
    save(root, 900).rename(root / "step-901")
    listed = {one["step"]: one for one in run(bench, "list", root, "--json").json}
    states = {step: one["state"] for step, one in listed.items()}
    assert states[100] == "complete"
    assert (states[200], states[300], states[500]) == ("corrupt",) * 3
    assert states[600] == "foreign"
    assert (states[700], states[800]) == ("partial",) * 2
    assert states[400] in ("foreign", "partial") and states[901] in ("corrupt", "foreign")
    assert all(one["reason"] for step, one in listed.items() if step != 100)
    assert [step for step, one in listed.items() if one["chosen"]] == [100]
    for step in (200, 300):
        assert SHARD in listed[step]["reason"]


def test_a_higher_step_of_an_older_attempt_is_not_the_newest(bench: Bench, root: Path) -> None:
    save(root, 500, attempt=1)
    save(root, 900, attempt=1, parent=500)
    save(root, 600, attempt=2, parent=500)
    listed = run(bench, "list", root, "--json").json
    assert [one["step"] for one in listed] == [600, 900, 500]
    assert chosen(bench, root) == 600


def test_a_folder_of_several_jobs(bench: Bench, root: Path) -> None:
    save(root, 100)
    save(root, 200, parent=100)
    save(root, 900, job="llama")
    answer = run(bench, "list", root, "--json")
    assert [one["step"] for one in answer.json if one["chosen"]] == [200]
    assert "--job tells which is meant" in answer.err
    other = run(bench, "list", root, "--job", "llama", "--json")
    assert [one["step"] for one in other.json if one["chosen"]] == [900]
    refused = run(bench, "prune", root, "--keep", 1, "--local", "--yes")
    assert refused.status == 2 and "name one with --job" in refused.err
    assert len(list(root.iterdir())) == 3


def test_nothing_is_there(bench: Bench, root: Path) -> None:
    assert run(bench, "list", root).out == f"There is no checkpoint in {root}.\n"
    assert run(bench, "list", root, "--json").json == []
    answer = run(bench, "verify", root)
    assert (answer.status, answer.out) == (1, "")
    assert "so nothing is verified" in answer.err


def test_what_was_written_without_planaria_says_what_to_do(bench: Bench, root: Path) -> None:
    (save(root, 400, files={SHARD: b"x"}) / "planaria-manifest.json").unlink()
    answer = run(bench, "list", root)
    assert "A resume would take none" in answer.out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("list", "{root}/not there"), "is not there"),
        (("list", "{file}"), "is no directory"),
        (("verify", "{root}", "--step", "7"), "there is no step 7 in"),
        (("list", "gs://x/y"), "s3://BUCKET/PREFIX"),
        (("prune", "{root}"), "say what stays: --keep 3"),
        (("prune", "{root}", "--keep", "1"), "--durable-in"),
        (("prune", "{root}", "--keep", "1", "--local", "--durable-in", "s3://bbb/x"), "give one of them"),
        (("prune", "{root}", "--keep", "0"), "--keep"),
        (("pin", "{root}", "7"), "there is no step 7"),
        (("pin", "{root}", "seven"), "STEP"),
        (("sync", "{root}"), "name where in S3"),
        (("sync", "{root}", "{root}/2"), "is no place in S3"),
        (("sync", "s3://bbb/x", "s3://bbb/y"), "restore"),
        (("restore", "{root}", "{root}/2"), "is a directory"),
        (("restore", "s3://bbb/x"), "name the directory"),
        (("restore", "s3://bbb/x", "s3://bbb/y"), "is no directory"),
        (("sync", "gpt-demo", "s3://bbb/x"), "takes one argument"),
        (("list", "gpt-dmeo"), "no job of this cluster is called 'gpt-dmeo'; it has none"),
    ],
)
def test_bad_input_is_one_sentence(bench: Bench, root: Path, words: tuple[str, ...], part: str) -> None:
    save(root, 100)
    file = root / "file"
    file.write_bytes(b"")
    answer = run(bench, *(word.format(root=root, file=file) for word in words))
    assert (answer.status, answer.out) == (2, "")
    assert part.lower() in answer.err.lower()
    assert answer.err.count("\n") == 1


# --- verify ------------------------------------------------------------------------------------------


def test_verify_reads_every_byte(bench: Bench, root: Path) -> None:
    save(root, 100)
    flip(save(root, 200, parent=100) / "rank 1/größe.distcp", 4000)
    assert {one["state"] for one in run(bench, "list", root, "--json").json} == {"complete"}
    answer = run(bench, "verify", root, "--json")
    assert answer.status == 1
    bad, good = answer.json
    assert (bad["step"], bad["state"], good["step"], good["state"]) == (200, "corrupt", 100, "complete")
    assert "größe.distcp" in bad["reason"]
    shown = run(bench, "verify", root)
    assert shown.status == 1 and "1 of 2 steps" in shown.out
    assert run(bench, "verify", root, "--step", 100).out.endswith("It is good.\n")
    assert run(bench, "verify", root / "step-100").status == 0
    assert run(bench, "verify", root / "step-200").status == 1


def test_a_bar_on_a_terminal_counts_the_bytes(
    bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(root, 100)
    stream = io.StringIO()
    terminal = Console(file=stream, force_terminal=True, width=100)
    monkeypatch.setattr(bars.screen, "console", lambda stderr=False: terminal if stderr else Console())
    counted: list[int] = []
    moved = bars.Bars.moved

    def count(self: bars.Bars, number: int) -> None:
        counted.append(number)
        moved(self, number)

    monkeypatch.setattr(bars.Bars, "moved", count)
    assert run(bench, "verify", root).status == 0
    assert sum(counted) == size()
    assert "step 100" in stream.getvalue()


def test_no_bar_elsewhere(bench: Bench, root: Path) -> None:
    save(root, 100)
    assert run(bench, "verify", root).err == ""
    assert run(bench, "verify", root, "--json").err == ""


# --- pin and prune -----------------------------------------------------------------------------------


def many(root: Path, *steps: int) -> None:
    before = -1
    for step in steps:
        save(root, step, parent=before)
        before = step


def left(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_prune_is_a_dry_run(bench: Bench, root: Path) -> None:
    many(root, 100, 200, 300)
    answer = run(bench, "prune", root, "--keep", 1, "--local", "--json")
    assert answer.status == 0
    document = answer.json
    assert document["dry_run"] is True and document["bytes"] == 2 * size()
    assert [(one["step"], one["goes"], one["removed"]) for one in document["steps"]] == [
        (300, False, False),
        (200, True, False),
        (100, True, False),
    ]
    assert all(one["why"] for one in document["steps"])
    shown = run(bench, "prune", root, "--keep", 1, "--local").out
    assert "2 steps of 3 would go" in shown and "--yes does it" in shown
    assert left(root) == {"step-100", "step-200", "step-300"}


def test_prune_removes_with_yes(bench: Bench, root: Path) -> None:
    many(root, 100, 200, 300, 400)
    answer = run(bench, "prune", root, "--keep", 1, "--keep-every", 200, "--local", "--yes")
    assert answer.status == 0
    assert "2 of 4 steps removed." in answer.out
    assert left(root) == {"step-200", "step-400"}
    again = run(bench, "prune", root, "--keep", 1, "--keep-every", 200, "--local", "--yes")
    assert again.out.endswith("Nothing goes.\n")


def test_what_is_pinned_or_bad_stays(bench: Bench, root: Path) -> None:
    many(root, 100, 200, 300, 400)
    pinned = run(bench, "pin", root, 100, "--reason", "best on the eval set")
    assert (pinned.status, pinned.out) == (0, f"Step 100 is pinned: {root / 'step-100'}.\n")
    (root / "step-200" / SHARD).write_bytes(b"")
    (root / "step-500.tmp").mkdir()
    one = next(one for one in run(bench, "list", root, "--json").json if one["step"] == 100)
    assert (one["pinned"], one["state"]) == ("best on the eval set", "complete")
    assert "pinned: best on the eval set" in run(bench, "list", root).out
    assert run(bench, "prune", root, "--keep", 1, "--local", "--yes").status == 0
    assert left(root) == {"step-100", "step-200", "step-400", "step-500.tmp"}
    assert run(bench, "unpin", root, 100, "--json").json["pinned"] is None
    run(bench, "prune", root, "--keep", 1, "--local", "--yes")
    assert left(root) == {"step-200", "step-400", "step-500.tmp"}


def test_the_step_that_a_resume_would_take_stays(bench: Bench, root: Path) -> None:
    save(root, 500, attempt=1)
    save(root, 900, attempt=1, parent=500)
    save(root, 600, attempt=2, parent=500)
    run(bench, "prune", root, "--keep", 1, "--local", "--yes")
    assert chosen(bench, root) == 600


def test_what_is_left_unfinished_goes_after_an_age(bench: Bench, root: Path) -> None:
    many(root, 100)
    for name in ("step-200.tmp", "step-300.tmp"):
        (root / name).mkdir()
        (root / name / SHARD).write_bytes(b"x")
    for path in (root / "step-200.tmp" / SHARD, root / "step-200.tmp"):
        os.utime(path, (1, 1))
    answer = run(bench, "prune", root, "--keep", 1, "--local", "--unfinished-hours", 24, "--json")
    assert answer.json["unfinished"] == [str(root / "step-200.tmp")]
    assert left(root) == {"step-100", "step-200.tmp", "step-300.tmp"}
    answer = run(bench, "prune", root, "--keep", 1, "--local", "--unfinished-hours", 24, "--yes", "--json")
    assert answer.json["unfinished"] == ["step-200.tmp"]
    assert left(root) == {"step-100", "step-300.tmp"}


# --- ends --------------------------------------------------------------------------------------------


def test_ctrl_c_ends_cleanly(bench: Bench, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(root, 100)

    def interrupted(self: object, copy: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(FileCheckpoints, "verify", interrupted)
    answer = run(bench, "verify", root, "--json")
    assert (answer.status, answer.out, answer.err) == (130, "", "Stopped.\n")


@pytest.mark.parametrize("command", ["list", "verify", "sync", "restore", "prune", "pin", "unpin"])
def test_help_teaches(bench: Bench, command: str) -> None:
    answer = run(bench, command, "--help")
    assert answer.status == 0
    assert f"Example: planaria checkpoints {command}" in answer.out
    assert "--json" in answer.out and "--job" in answer.out


def test_names_of_others_do_not_reach_the_terminal(bench: Bench, root: Path) -> None:
    save(root, 100, files={"evil\x1b[31m": b"x"})
    (root / "step-100" / "evil\x1b[31m").write_bytes(b"")
    shown = run(bench, "list", root).out
    assert "\x1b" not in shown and "corrupt" in shown
    assert screen.clean("x\x1b[31m") == "x"
    assert FILES
