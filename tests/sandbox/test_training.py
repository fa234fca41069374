"""Real PyTorch ranks: what a run that was broken and resumed has in common with one that was not."""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planaria.core.manifest import FILE_NAME, Lineage, Manifest
from planaria.core.saved_step import StepCopy
from planaria.sandbox import saved_steps
from planaria.sandbox.job_folder import JobFolder, RankExit, read_json, write_json
from tests.sandbox.ranks import SERVER, TINY, Cluster, cluster, final, free_port, train_log, within

pytestmark = pytest.mark.needs("torch")

WORLD = 4
CONFIG: dict[str, Any] = {"steps": 30, "save_every": 10, "batch": 2, "nice": 0, "model": TINY}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("ranks"), nodes=WORLD, program=SERVER) as running:
        yield running


@pytest.fixture(scope="module")
def whole(ranks: Cluster, tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """An uninterrupted run of CONFIG on WORLD ranks."""
    folder = JobFolder(tmp_path_factory.mktemp("whole") / "job-1")
    ranks.start(folder, WORLD, config=CONFIG)
    assert ranks.ended(folder, WORLD) == [RankExit.DONE] * WORLD
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "job-1")


def losses(folder: JobFolder, attempt: int) -> dict[int, float]:
    return {each["step"]: each["loss"] for each in train_log(folder) if each["attempt"] == attempt}


def complete(folder: JobFolder) -> list[int]:
    found = (saved_steps.find(folder, copy.step, copy.lineage.job) for copy in listed(folder) if copy.lineage)
    return [copy.step for copy in found if copy and copy.usable]


def listed(folder: JobFolder) -> list[StepCopy]:
    return saved_steps.usable(folder, folder.root.name)


def manifest(folder: JobFolder, step: int) -> Manifest:
    return Manifest.from_json((folder.step(step) / FILE_NAME).read_bytes())


def copied(whole: JobFolder, folder: JobFolder) -> JobFolder:
    """The whole run's folder as if it had broken after step 20."""
    shutil.copytree(whole.root, folder.root)
    shutil.rmtree(folder.attempts)
    shutil.rmtree(folder.step(30))
    folder.final.unlink()
    return folder


def log_of(folder: JobFolder, attempt: int, rank: int = 0) -> str:
    return folder.rank_log(attempt, rank).read_text()


def test_a_whole_run_learns_and_leaves_what_it_promises(whole: JobFolder) -> None:
    lines = train_log(whole)
    assert [each["step"] for each in lines] == list(range(1, 31))
    assert all(set(each) == {"attempt", "step", "loss", "at"} for each in lines)
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.3
    assert complete(whole) == [30, 20, 10]
    assert manifest(whole, 30).lineage == Lineage("job-1", 1, 20)
    assert manifest(whole, 30).world_size == WORLD
    assert "torch" in manifest(whole, 30).framework
    assert final(whole)["step"] == 30
    assert final(whole)["loss"] == lines[-1]["loss"]
    assert len(final(whole)["weights_sha256"]) == 64
    for rank in range(WORLD):
        ready = json.loads(whole.rank_ready(1, rank).read_text())
        assert ready["forked_at"] < ready["first_collective_at"] <= lines[0]["at"]


@pytest.mark.parametrize("moment", ["in a step", "in a save"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_and_resumed_run_ends_with_the_same_bits(
    ranks: Cluster, whole: JobFolder, folder: JobFolder, moment: str, victim: int
) -> None:
    pids = ranks.start(folder, WORLD, config=CONFIG)
    if moment == "in a step":
        within(20, "step 13", lambda: any(each["step"] >= 13 for each in train_log(folder)))
    else:
        within(20, "a save", lambda: folder.step_in_progress(20).exists() or folder.step(20).exists())
    os.kill(pids[victim], signal.SIGKILL)
    killed_at = time.monotonic()
    codes = ranks.ended(folder, WORLD)
    assert time.monotonic() - killed_at < 5
    assert codes == [-signal.SIGKILL if rank == victim else RankExit.PEER_LOST for rank in range(WORLD)]
    assert "Another rank was lost" in log_of(folder, 1, (victim + 1) % WORLD)
    assert not folder.final.exists()

    resume_step = complete(folder)[0]
    assert resume_step in (10, 20)
    ranks.start(folder, WORLD, attempt=2, resume_step=resume_step, config=CONFIG)
    assert ranks.ended(folder, WORLD, attempt=2) == [RankExit.DONE] * WORLD
    assert final(folder) == final(whole)
    uninterrupted = losses(whole, 1)
    assert losses(folder, 2) == {step: uninterrupted[step] for step in range(resume_step + 1, 31)}
    assert all(uninterrupted[step] == loss for step, loss in losses(folder, 1).items())
    assert manifest(folder, 30).lineage == Lineage("job-1", 2, 20)


def test_a_lost_node_ends_the_attempt_and_its_replacement_resumes_it(
    ranks: Cluster, whole: JobFolder, folder: JobFolder
) -> None:
    ranks.start(folder, WORLD, config=CONFIG)
    within(20, "step 11", lambda: any(each["step"] >= 11 for each in train_log(folder)))
    ranks.replace(3)
    assert ranks.ended(folder, WORLD) == [RankExit.PEER_LOST] * 3 + [-signal.SIGKILL]
    ranks.start(folder, WORLD, attempt=2, resume_step=complete(folder)[0], config=CONFIG)
    assert ranks.ended(folder, WORLD, attempt=2) == [RankExit.DONE] * WORLD
    assert final(folder)["weights_sha256"] == final(whole)["weights_sha256"]


def test_a_request_gets_its_checkpoint_at_the_next_step_boundary(
    ranks: Cluster, whole: JobFolder, folder: JobFolder
) -> None:
    config = CONFIG | {"step_seconds": 0.02}
    ranks.start(folder, WORLD, config=config)
    within(20, "step 2", lambda: train_log(folder)[2:])
    write_json(folder.request, {"id": "notice-1"})
    asked_after = train_log(folder)[-1]["step"]
    served = within(5, "served", lambda: read_json(folder.served))
    assert served["id"] == "notice-1"
    assert asked_after < served["step"] <= asked_after + 3
    assert served["step"] in complete(folder)
    for node in (0, 1, 2, 3):
        ranks.replace(node)
    ranks.ended(folder, WORLD)
    assert complete(folder)[0] >= served["step"]

    ranks.start(folder, WORLD, attempt=2, resume_step=served["step"], config=config)
    assert ranks.ended(folder, WORLD, attempt=2) == [RankExit.DONE] * WORLD
    assert final(folder) == final(whole)
    assert read_json(folder.served) == served


def test_a_request_at_a_step_that_exists_is_served_without_a_second_save(
    ranks: Cluster, whole: JobFolder, folder: JobFolder
) -> None:
    copied(whole, folder)
    before = (folder.step(20) / FILE_NAME).read_bytes()
    write_json(folder.request, {"id": "notice-2"})
    config = CONFIG | {"steps": 20}
    ranks.start(folder, WORLD, attempt=2, resume_step=20, config=config)
    assert ranks.ended(folder, WORLD, attempt=2) == [RankExit.DONE] * WORLD
    served = read_json(folder.served)
    assert served
    assert (served["id"], served["step"]) == ("notice-2", 20)
    assert (folder.step(20) / FILE_NAME).read_bytes() == before


def test_a_step_that_an_older_attempt_left_behind_is_saved_anew(
    ranks: Cluster, whole: JobFolder, folder: JobFolder
) -> None:
    copied(whole, folder)
    config = CONFIG | {"steps": 20, "save_every": 20}
    ranks.start(folder, WORLD, attempt=2, resume_step=10, config=config)
    assert ranks.ended(folder, WORLD, attempt=2) == [RankExit.DONE] * WORLD
    assert manifest(folder, 20).lineage == Lineage("job-1", 2, 10)
    assert complete(folder) == [20, 10]


def break_nothing(folder: JobFolder) -> None:
    pass


def remove_it(folder: JobFolder) -> None:
    shutil.rmtree(folder.step(20))


def flip_a_bit(folder: JobFolder) -> None:
    data = folder.step(20) / "__1_0.distcp"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def unmark(folder: JobFolder) -> None:
    (folder.step(20) / FILE_NAME).unlink()


def make_foreign(folder: JobFolder) -> None:
    path = folder.step(20) / FILE_NAME
    marker = json.loads(path.read_text())
    marker["lineage"]["job"] = "job-9"
    path.write_text(json.dumps(marker))


@pytest.mark.parametrize(
    ("damage", "resume_step", "sentence"),
    [
        (remove_it, 20, "Cannot resume from step 20: there is no such checkpoint."),
        (flip_a_bit, 20, "the checkpoint is corrupt, the checksum of '__1_0.distcp' is wrong."),
        (unmark, 20, "a whole dcp checkpoint that was written without Planaria."),
        (make_foreign, 20, "the checkpoint is foreign, it belongs to the job 'job-9'."),
        (break_nothing, 0, "Cannot resume from step 0: there is no such checkpoint."),
        (break_nothing, -1, "Cannot start from step 0: the job has a complete checkpoint of step 20."),
    ],
)
def test_no_rank_starts_where_it_was_not_told_to(
    ranks: Cluster, whole: JobFolder, folder: JobFolder, damage: Any, resume_step: int, sentence: str
) -> None:
    damage(copied(whole, folder))
    before = folder.train_log.read_bytes()
    ranks.start(folder, 2, attempt=2, resume_step=resume_step, config=CONFIG)
    assert ranks.ended(folder, 2, attempt=2, seconds=5) == [RankExit.CANNOT_RESUME] * 2
    assert log_of(folder, 2).endswith(f"{sentence}\n")
    assert log_of(folder, 2).count("\n") == 1
    assert folder.train_log.read_bytes() == before
    assert not folder.final.exists()


def test_a_checkpoint_of_another_model_or_seed_is_refused(
    ranks: Cluster, whole: JobFolder, folder: JobFolder
) -> None:
    copied(whole, folder)
    for attempt, change, words in (
        (2, {"model": TINY | {"width": 16}}, "Cannot resume from step 20: rank "),
        (3, {"model": TINY | {"layers": 2}}, "Cannot resume from step 20: rank "),
        (4, {"seed": 8}, "the data cursor is at step 20 of seed 7, the recipe's seed is 8."),
    ):
        ranks.start(folder, 2, attempt=attempt, resume_step=20, config=CONFIG | change)
        assert ranks.ended(folder, 2, attempt=attempt) == [RankExit.CANNOT_RESUME] * 2
        assert words in log_of(folder, attempt)


def test_a_silent_peer_is_given_up_after_the_time_out(ranks: Cluster, folder: JobFolder) -> None:
    config = CONFIG | {"timeout_seconds": 1, "steps": 1000, "step_seconds": 0.02}
    pids = ranks.start(folder, 2, config=config)
    within(20, "step 2", lambda: train_log(folder)[1:])
    os.kill(pids[1], signal.SIGSTOP)
    within(5, "rank 0 ended", folder.rank_exit(1, 0).exists)
    os.kill(pids[1], signal.SIGKILL)
    assert ranks.ended(folder, 2) == [RankExit.PEER_LOST, -signal.SIGKILL]


@pytest.mark.parametrize("comes", [0, 1])
def test_a_rank_does_not_wait_for_ever_for_one_that_never_comes(
    ranks: Cluster, folder: JobFolder, comes: int
) -> None:
    request = ranks.request(folder, comes, world_size=2, master_port=free_port())
    ranks.ask(verb="fork", **request, config=CONFIG | {"timeout_seconds": 1})
    within(5, "the rank ended", folder.rank_exit(1, comes).exists)
    assert json.loads(folder.rank_exit(1, comes).read_text())["exit_code"] == RankExit.PEER_LOST


def test_ranks_that_were_started_for_different_things_do_not_train(ranks: Cluster, folder: JobFolder) -> None:
    port = free_port()
    for rank in (0, 1):
        request = ranks.request(folder, rank, world_size=2, master_port=port)
        ranks.ask(verb="fork", **request, config=CONFIG | {"seed": rank})
    assert ranks.ended(folder, 2) == [RankExit.FAILED] * 2
    assert "different attempts, steps or recipes" in log_of(folder, 1)


def test_an_attempt_that_was_superseded_commits_nothing_more(ranks: Cluster, folder: JobFolder) -> None:
    ranks.start(folder, 2, config=CONFIG | {"step_seconds": 0.02})
    within(20, "step 2", lambda: train_log(folder)[1:])
    folder.rank_log(2, 0).parent.mkdir()
    assert ranks.ended(folder, 2) == [RankExit.SUPERSEDED, RankExit.PEER_LOST]
    assert complete(folder) == []
    assert "Attempt 1 ends: attempt 2 has been started." in log_of(folder, 1)


def test_a_taken_master_port_is_said(ranks: Cluster, folder: JobFolder) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ranks.start(folder, 1, master_port=port, config=CONFIG)
        assert ranks.ended(folder, 1) == [RankExit.FAILED]
    assert f"The master port {port} is in use." in log_of(folder, 1)


def test_half_a_line_of_a_killed_rank_stays_apart(
    ranks: Cluster, whole: JobFolder, folder: JobFolder
) -> None:
    copied(whole, folder)
    with folder.train_log.open("a") as log:
        log.write('{"attempt": 1, "st')
    ranks.start(folder, WORLD, attempt=2, resume_step=20, config=CONFIG)
    assert ranks.ended(folder, WORLD, attempt=2) == [RankExit.DONE] * WORLD
    lines = folder.train_log.read_text().splitlines()
    assert lines[30] == '{"attempt": 1, "st'
    assert json.loads(lines[31])["step"] == 21


def test_another_number_of_ranks_goes_on_from_the_same_weights(
    ranks: Cluster, whole: JobFolder, folder: JobFolder
) -> None:
    copied(whole, folder)
    ranks.start(folder, 3, attempt=2, resume_step=20, config=CONFIG)
    assert ranks.ended(folder, 3, attempt=2) == [RankExit.DONE] * 3
    assert abs(losses(folder, 2)[21] - losses(whole, 1)[21]) < 0.3
    assert manifest(folder, 30).world_size == 3


def test_retention_keeps_the_resume_point(ranks: Cluster, whole: JobFolder, folder: JobFolder) -> None:
    copied(whole, folder)
    ranks.start(folder, WORLD, attempt=2, resume_step=10, config=CONFIG | {"save_every": 5, "keep": 2})
    assert ranks.ended(folder, WORLD, attempt=2) == [RankExit.DONE] * WORLD
    assert complete(folder) == [30, 25, 10]
    assert final(folder) == final(whole)
