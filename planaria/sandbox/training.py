"""One rank of the sandbox's training job: data-parallel PyTorch on CPU over gloo.

Deterministic to the last bit: the batch of a step follows from (seed, step, rank) alone, the dropout
generator is part of the checkpoint, and gradients are added in one flat buffer in the same order in every
attempt. (DistributedDataParallel regroups its buckets after the first backward pass, so that the first
step after a resume adds in another order than the same step of the uninterrupted run.)

Step n is the n-th optimizer step; checkpoint n is the state after it.
"""

import json
import math
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import IO

import torch
import torch._dynamo  # torch.optim imports it at first use, which would cost every rank half a second
import torch.distributed as dist

from planaria.sandbox.job_folder import JobFolder, RankExit, read_json, write_json
from planaria.sandbox.job_recipe import RankRequest
from planaria.sandbox.model import loss_of
from planaria.sandbox.training_checkpoints import Checkpoints, Stopped, first_line, peers_needed, say
from planaria.sandbox.training_state import TrainingState, number, weights_sha256


def main(request: RankRequest, forked_at: float) -> int:
    """Train until the last step; returns a RankExit and never raises.

    forked_at: epoch seconds at which the rank was asked for.
    """
    try:
        _train(request, forked_at)
        return RankExit.DONE
    except Stopped as stop:
        say(str(stop))
        return stop.code
    except OSError as error:
        say(f"The rank cannot go on: {error}.")
        return RankExit.FAILED
    except Exception:  # noqa: BLE001  the rank's log is the place for it, the exit code says the rest
        traceback.print_exc()
        return RankExit.FAILED


def _train(request: RankRequest, forked_at: float) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = JobFolder(Path(request.dir))
    state = TrainingState(request.config, request.rank)
    checkpoints = Checkpoints(request, state)
    checkpoints.check_start()
    _join(request, folder, forked_at)
    if request.resume_step >= 0:
        checkpoints.load()
    say(f"Attempt {request.attempt}, rank {request.rank} of {request.world_size}, after step {state.step}.")
    with _train_log(folder, leads=request.rank == 0) as log:
        while state.step < request.config.steps:
            _step(request, state, checkpoints, log)
    if request.rank == 0:
        checkpoints.serve(checkpoints.wanted())
        digest = weights_sha256(state.model)
        write_json(folder.final, {"step": state.step, "loss": state.loss, "weights_sha256": digest})
        say(f"The job is done: step {state.step}, loss {state.loss:.4f}.")
    try:
        dist.barrier()
    except RuntimeError:
        pass  # everything is saved; a peer that has left already takes nothing away
    dist.destroy_process_group()


def _join(request: RankRequest, folder: JobFolder, forked_at: float) -> None:
    """All ranks together: meet, and make sure that all were started for the same thing."""
    # gloo looks the host's own name up otherwise, which fails on machines that do not know theirs.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    timeout = timedelta(seconds=request.config.timeout_seconds)
    meeting = folder.rank_store(request.attempt)
    port = {"port": request.master_port}
    deadline = time.monotonic() + timeout.total_seconds()
    # Without this wait a rank that comes before rank 0 sleeps for half a second in TCPStore's own retry.
    while request.rank != 0 and read_json(meeting) != port:
        if time.monotonic() > deadline:
            raise Stopped(RankExit.PEER_LOST, f"Rank 0 did not come within {timeout.total_seconds():g} s.")
        time.sleep(0.005)
    try:
        store = dist.TCPStore(
            "127.0.0.1",
            request.master_port,
            request.world_size,
            is_master=request.rank == 0,
            timeout=timeout,
            wait_for_workers=False,
        )
        if request.rank == 0:
            write_json(meeting, port)
        dist.init_process_group(
            "gloo", store=store, rank=request.rank, world_size=request.world_size, timeout=timeout
        )
    except RuntimeError as error:
        if "EADDRINUSE" in str(error):
            raise Stopped(RankExit.FAILED, f"The master port {request.master_port} is in use.") from error
        raise Stopped(RankExit.PEER_LOST, f"The ranks did not all come: {first_line(error)}") from error
    mine = torch.tensor([request.attempt, request.resume_step, number(asdict(request.config))])
    everyone = [torch.empty_like(mine) for _ in range(request.world_size)]
    with peers_needed():
        dist.all_gather(everyone, mine)
    ready = {"forked_at": forked_at, "first_collective_at": time.time()}
    write_json(folder.rank_ready(request.attempt, request.rank), ready)
    if any(not torch.equal(each, mine) for each in everyone):
        raise Stopped(RankExit.FAILED, "The ranks were started with different attempts, steps or recipes.")


def _step(request: RankRequest, state: TrainingState, checkpoints: Checkpoints, log: IO[str] | None) -> None:
    """All ranks together: one optimizer step, and a checkpoint after it when one is due or wanted."""
    started, step, config = time.monotonic(), state.step + 1, request.config
    wanted = checkpoints.wanted() if request.rank == 0 else None
    summed = state.summed.zero_()
    loss = loss_of(state.model, state.batch(step))
    torch.autograd.backward(loss)
    summed[-2] = loss.detach()
    summed[-1] = float(wanted is not None)
    with peers_needed():
        dist.all_reduce(summed)
    save_now = summed[-1].item() > 0
    summed.div_(request.world_size)
    state.loss = summed[-2].item()
    if not math.isfinite(state.loss):
        raise Stopped(RankExit.FAILED, f"The loss of step {step} is {state.loss}.")
    state.optimizer.step()
    state.step = step
    if log is not None:
        line = {"attempt": request.attempt, "step": step, "loss": state.loss, "at": time.time()}
        log.write(json.dumps(line) + "\n")
        log.flush()
    if save_now or step % config.save_every == 0 or step == config.steps:
        checkpoints.save(wanted)
    time.sleep(max(0.0, config.step_seconds - (time.monotonic() - started)))


@contextmanager
def _train_log(folder: JobFolder, leads: bool) -> Iterator[IO[str] | None]:
    if not leads:
        yield None
        return
    with folder.train_log.open("a+", encoding="utf-8") as log:
        if log.tell() and not folder.train_log.read_bytes().endswith(b"\n"):
            log.write("\n")  # a rank 0 that was killed while it wrote left half a line
        yield log
