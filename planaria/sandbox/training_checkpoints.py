"""Checkpoints of the training job with torch.distributed.checkpoint (DCP), seen from one rank."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from planaria.checkpoint import writing
from planaria.core.errors import PlanariaError
from planaria.core.manifest import Lineage
from planaria.core.saved_step import StepCopy
from planaria.sandbox import saved_steps
from planaria.sandbox.job_folder import JobFolder, RankExit, read_json, write_json
from planaria.sandbox.job_recipe import RankRequest
from planaria.sandbox.training_state import TrainingState

_LITTLE_ROOM = 1 << 20


class Stopped(Exception):
    """The rank ends with `code`; the message is one sentence for its log."""

    def __init__(self, code: RankExit, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@contextmanager
def peers_needed() -> Iterator[None]:
    """gloo reports the death or silence of a peer as a RuntimeError of whatever collective is waiting."""
    try:
        yield
    except CheckpointException:
        raise
    except RuntimeError as error:
        raise Stopped(RankExit.PEER_LOST, f"Another rank was lost: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Checkpoints:
    """Saves and loads one rank's share. Methods that all ranks call together say so."""

    def __init__(self, request: RankRequest, state: TrainingState) -> None:
        self._request, self._state = request, state
        self._folder = JobFolder(Path(request.dir))
        self._leads = request.rank == 0
        self._parent = request.resume_step
        self._replaced: StepCopy | None = None

    def check_start(self) -> None:
        """Raises Stopped unless the job can start where it was told to: never silently somewhere else."""
        step, job = self._request.resume_step, self._request.job_id
        if step < 0:
            for saved in saved_steps.usable(self._folder, job):
                if saved_steps.store(self._folder, job).verify(saved).usable:
                    raise _cannot(
                        f"start from step 0: the job has a complete checkpoint of step {saved.step}."
                    )
            return
        found = saved_steps.find(self._folder, step, job)
        if found is None:
            raise _cannot(f"resume from step {step}: there is no such checkpoint.")
        if not found.usable:
            raise _cannot(f"resume from step {step}: the checkpoint is {found.state.value}, {found.reason}.")

    def load(self) -> None:
        """All ranks together: the state becomes that of resume_step."""
        step, state = self._request.resume_step, self._state
        state.room_for_moments()
        tensors = state.tensors()
        if self._world_size_of(step) != self._request.world_size:
            # With another number of ranks it is another run from here on, and its dice are fresh.
            del tensors["generator"]
        try:
            with peers_needed():
                load(tensors, storage_reader=FileSystemReader(self._folder.step(step)))
        except CheckpointException as error:
            raise _cannot(f"resume from step {step}: {_cause(error)}") from error
        cursor = tensors["cursor"].tolist()
        if cursor != [step, state.config.seed]:
            raise _cannot(
                f"resume from step {step}: the data cursor is at step {cursor[0]} of seed {cursor[1]}, "
                f"the recipe's seed is {state.config.seed}."
            )
        if "generator" in tensors:
            torch.set_rng_state(tensors["generator"][f"rank-{state.rank}"])
        else:
            state.reseed(step)
        state.step, state.loss = step, tensors["loss"].item()

    def wanted(self) -> str | None:
        """Id of a request for a checkpoint that has not been served yet."""
        request = read_json(self._folder.request)
        if request is None:
            return None
        wanted = str(request.get("id", ""))
        served = read_json(self._folder.served)
        return None if served and served.get("id") == wanted else wanted

    def serve(self, wanted: str | None) -> None:
        """Note that the request has its checkpoint, that of the present step."""
        if wanted is not None:
            write_json(self._folder.served, {"id": wanted, "step": self._state.step, "at": time.time()})

    def save(self, wanted: str | None) -> None:
        """All ranks together: the present step becomes a checkpoint, unless this attempt has it already.

        wanted: id of the request that asks for it, known to rank 0 alone.
        """
        started, step = time.monotonic(), self._state.step
        scratch = self._folder.step_in_progress(step)
        needed = torch.tensor([int(not self._leads or self._prepare(scratch))])
        with peers_needed():
            dist.broadcast(needed, 0)
        if needed.item():
            try:
                with peers_needed():
                    save(self._state.tensors(), storage_writer=FileSystemWriter(scratch, thread_count=1))
            except CheckpointException as error:
                raise self._failed(scratch, error) from error
            if self._leads:
                self._commit()
        if self._leads:
            self.serve(wanted)
            seconds = time.monotonic() - started
            say(
                f"Checkpoint of step {step}: "
                + (f"{seconds:.3f} s." if needed.item() else "it is there already.")
            )
        self._parent = step

    def _failed(self, scratch: Path, error: CheckpointException) -> Stopped:
        what = f"The checkpoint of step {self._state.step} failed"
        if not self._leads:
            return Stopped(RankExit.FAILED, f"{what}; the log of rank 0 says why.")
        # PyTorch's own words for a full disk are "unexpected pos 704 vs 598".
        full = shutil.disk_usage(self._folder.root).free < _LITTLE_ROOM
        writing.remove_tree(scratch)  # nobody can use it, and on a full disk it is in the way
        cause = f"no space is left in {self._folder.root}." if full else _cause(error)
        return Stopped(RankExit.FAILED, f"{what}: {cause}")

    def _prepare(self, scratch: Path) -> bool:
        """False when this step is saved and this attempt has saved it or resumed from it."""
        self._check_not_superseded()
        request, step = self._request, self._state.step
        saved = saved_steps.find(self._folder, step, request.job_id)
        if saved and saved.usable and saved.lineage:
            # What an older attempt saved beyond the resume point is off this attempt's line: nobody goes on
            # from it once this attempt has saved anything.
            ours = saved.lineage.attempt == request.attempt or step == request.resume_step
            if ours and self._world_size_of(step) == request.world_size:
                return False
        writing.remove_tree(scratch)
        scratch.mkdir(parents=True)
        self._replaced = saved
        return True

    def _commit(self) -> None:
        request, step = self._request, self._state.step
        self._check_not_superseded()
        parent = self._parent
        if parent >= step and self._replaced and self._replaced.lineage:
            parent = self._replaced.lineage.parent_step  # the resume point, saved again by other ranks
        lineage = Lineage(request.job_id, request.attempt, parent)
        framework = {"torch": torch.__version__}
        try:
            saved_steps.commit(self._folder, step, request.world_size, lineage, framework)
        except PlanariaError as error:
            raise Stopped(RankExit.FAILED, f"The checkpoint of step {step} failed: {error}") from error
        saved_steps.prune(self._folder, request.job_id, self._state.config.keep, protect=request.resume_step)

    def _world_size_of(self, step: int) -> int:
        steps = saved_steps.store(self._folder, self._request.job_id)
        copy = steps.look(self._folder.step(step).name)
        return 0 if copy is None else steps.manifest(copy).world_size

    def _check_not_superseded(self) -> None:
        newest, mine = self._folder.newest_attempt(), self._request.attempt
        if newest > mine:
            raise Stopped(RankExit.SUPERSEDED, f"Attempt {mine} ends: attempt {newest} has been started.")


def say(sentence: str) -> None:
    """One line in the rank's log; a full disk does not change how the rank ends."""
    try:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {sentence}\n")
        sys.stdout.flush()
    except OSError:
        pass


def _cannot(what: str) -> Stopped:
    return Stopped(RankExit.CANNOT_RESUME, f"Cannot {what}")


def _cause(error: CheckpointException) -> str:
    rank, (reason, _) = next(iter(error.failures.items()))
    return f"rank {rank}: {first_line(reason)}"
