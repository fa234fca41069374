"""How a rank's process comes into its node: process group, signals, descriptors."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from planaria.core.errors import InvalidInput
from planaria.sandbox.job_recipe import RankRequest

RankMain = Callable[[RankRequest, float], int]
"""(request, epoch seconds of the request) -> exit code."""

_PR_SET_PDEATHSIG = 1


def become_rank(
    request: RankRequest, forked_at: float, rank_main: RankMain, log: int, server_pid: int
) -> NoReturn:
    """In the forked child: shed everything of the rank server's, run the rank, end the process.

    log: descriptor that stdout and stderr go to.
    """
    code = 1
    try:
        _die_with_parent(server_pid)
        os.setpgid(0, request.pgid_of)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _close_all_but_standard()
        os.nice(request.config.nice)
        code = int(rank_main(request, forked_at))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def check_group(request: RankRequest) -> None:
    """Raises InvalidInput unless pgid_of leads a living process group of our session."""
    leader, node = request.pgid_of, request.node_id or "(no name)"
    try:
        group, session = os.getpgid(leader), os.getsid(leader)
        state = Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError as error:
        raise InvalidInput(f"the process {leader} of node {node} is gone") from error
    if state in "ZX":
        raise InvalidInput(f"the process {leader} of node {node} is dead")
    if group != leader:
        raise InvalidInput(f"the process {leader} of node {node} leads no process group")
    if session != os.getsid(0):
        raise InvalidInput(f"the process {leader} of node {node} is not in the rank server's session")


def _die_with_parent(parent: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above


def _close_all_but_standard() -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # the directory's own descriptor
