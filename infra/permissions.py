"""What each Lambda may do: one table from function to grants. docs/iam.md says why in words."""

from collections.abc import Mapping

from infra import eks_access
from infra.autoscaling_grants import lifecycle_hooks, members
from infra.checkpoint_grants import (
    commits_manifests,
    reads_checkpoints,
    reads_transfers,
    removes_checkpoints,
    repository_tasks,
)
from infra.command_grants import commands
from infra.grants import (
    Grant,
    Maker,
    Targets,
    answers,
    describe,
    held_events,
    large_events,
    launch,
    listing,
    looks_at,
    notices,
    on_own_instances,
    queues,
    rows,
    starts,
    stops,
    sweep_events,
)

# The machines whose executions can hold a node's session.
_OF_NODES = ("heal_node", "isolate_node", "launch_replacement")
_OF_ALL = (*_OF_NODES, "resume_job")
_DESCRIBE = describe("ec2:DescribeInstances")
# Whoever finds the last pending node of a job settled starts the job's resume.
_RESUME: tuple[Maker, ...] = (starts("resume_job"), looks_at("resume_job"), stops("resume_job"))


_SYNC: tuple[Maker, ...] = (starts("sync_checkpoints"), looks_at("sync_checkpoints"))
# A step that is put aside leaves no task of FSx behind.
_CANCELS = repository_tasks("CancelDataRepositoryTask")


def _with_slurm(make: Maker) -> Maker:
    """To list the nodes behind the names of jobs that nobody told Planaria of; for EKS see eks_access.py."""
    return lambda to: make(to) if to.head_node else ()


def _with_users(make: Maker) -> Maker:
    """Where users submit jobs by themselves: one that cannot be started again is told of."""
    return lambda to: make(to) if to.head_node or to.eks_cluster else ()


BY_FUNCTION: Mapping[str, tuple[Maker, ...]] = {
    "triage": (
        rows,
        listing,
        queues,
        large_events,
        _DESCRIBE,
        starts("heal_node", "resume_job", "sync_checkpoints"),
        looks_at(*_OF_ALL, "sync_checkpoints"),
        stops(*_OF_ALL),
        answers("heal_node", "launch_replacement", "resume_job", "refill_spares"),
        notices,
        commands(slurm=("jobs-on",)),
    ),
    "sweep": (
        rows,
        held_events,
        listing,
        describe(
            "ec2:DescribeInstances",
            "ec2:DescribeInstanceStatus",
            "ec2:DescribeInstanceTopology",
            "ec2:DescribeCapacityReservationTopology",
        ),
        starts(*_OF_ALL, "refill_spares", "restore_checkpoint", "sync_checkpoints"),
        looks_at(*_OF_ALL, "refill_spares", "restore_checkpoint", "sync_checkpoints"),
        repository_tasks("CancelDataRepositoryTask"),
        stops(*_OF_ALL),
        on_own_instances("Terminate", "ec2:TerminateInstances"),
        members,
        answers("heal_node", "resume_job"),
        sweep_events,
        notices,
        commands(
            slurm=("node", "jobs-on", "jobs", "readmit", "hold", "topology"), nodes=("check", "settle-step")
        ),
    ),
    "begin_incident": (rows, _DESCRIBE, stops(*_OF_NODES)),
    "ask_approval": (rows, answers("heal_node"), notices),
    "handle_spot_interruption": (rows, *_SYNC),
    "isolate_node": (
        rows,
        lifecycle_hooks,
        commands(slurm=("isolate", "lost", "jobs-on", "jobs", "stop", "hold")),
        _with_slurm(listing),
        _with_users(notices),
    ),
    "launch_replacement": (
        rows,
        _DESCRIBE,
        launch,
        on_own_instances("Terminate", "ec2:TerminateInstances"),
        members,
        notices,
    ),
    "await_node": (rows, _DESCRIBE, answers("heal_node", "launch_replacement", "refill_spares")),
    "reboot_node": (rows, on_own_instances("Reboot", "ec2:RebootInstances")),
    "reset_gpu": (rows, commands(nodes=("reset-gpu",))),
    "verify_node": (rows, commands(nodes=("check",))),
    "climb_ladder": (rows,),
    "continue_incident": (
        rows,
        starts("heal_node", "launch_replacement"),
        looks_at("heal_node", "launch_replacement"),
    ),
    "admit_node": (rows, commands(slurm=("join", "readmit"))),
    "retire_node": (
        rows,
        _DESCRIBE,
        on_own_instances("Terminate", "ec2:TerminateInstances"),
        members,
    ),
    "tell_job": (rows, *_RESUME),
    "close_incident": (rows, *_RESUME, notices),
    "begin_resume": (rows,),
    "choose_checkpoint": (
        rows,
        commands(slurm=("jobs",), nodes=("list-checkpoints",)),
        reads_checkpoints,
        starts("restore_checkpoint"),
        looks_at("restore_checkpoint"),
    ),
    # Whoever finds a restore dead starts it again, or ends it and tells.
    "await_restore": (
        rows,
        starts("restore_checkpoint"),
        looks_at("restore_checkpoint"),
        answers("resume_job"),
        commands(nodes=("settle-step",)),
        notices,
    ),
    "requeue_job": (rows, commands(slurm=("requeue", "jobs", "place")), _with_slurm(listing)),
    "await_steps": (rows, answers("resume_job")),
    "close_resume": (rows, notices, commands(slurm=("hold",))),
    "begin_refill": (rows,),
    "launch_spare": (rows, _DESCRIBE, launch, notices),
    "close_refill": (rows,),
    "begin_restore": (rows,),
    "choose_restore": (rows, listing, commands(nodes=("list-checkpoints",)), reads_checkpoints),
    "bring_checkpoint": (
        rows,
        listing,
        commands(nodes=("plan-transfer", "run-transfer")),
        repository_tasks("CreateDataRepositoryTask", "DescribeDataRepositoryTasks"),
    ),
    "settle_restore": (rows, listing, commands(nodes=("settle-step", "prune-checkpoints"))),
    "close_restore": (rows, answers("resume_job"), commands(nodes=("settle-step",)), notices),
    "begin_sync": (rows,),
    "plan_sync": (rows, listing, commands(nodes=("list-checkpoints",))),
    "start_sync": (
        rows,
        listing,
        commands(nodes=("plan-transfer", "run-transfer")),
        reads_checkpoints,
        commits_manifests,
        removes_checkpoints,
        repository_tasks(
            "CreateDataRepositoryTask", "DescribeDataRepositoryTasks", "CancelDataRepositoryTask"
        ),
    ),
    "follow_sync": (
        rows,
        listing,
        commands(nodes=("run-transfer", "settle-step")),
        repository_tasks("DescribeDataRepositoryTasks", "CancelDataRepositoryTask"),
    ),
    "verify_sync": (rows, reads_checkpoints, reads_transfers, _CANCELS),
    "record_sync": (rows, reads_checkpoints, reads_transfers, commits_manifests, _CANCELS),
    "retain_sync": (
        rows,
        listing,
        commands(nodes=("list-checkpoints", "prune-checkpoints", "sweep-checkpoints")),
        reads_checkpoints,
        commits_manifests,
        removes_checkpoints,
    ),
    "close_sync": (rows, notices, _CANCELS),
    "continue_sync": (rows, *_SYNC),
}


def of(function: str, targets: Targets, sandbox: bool) -> tuple[Grant, ...]:
    """Every grant of one function, in the table's order."""
    grants = tuple(grant for make in BY_FUNCTION[function] for grant in make(targets))
    grants += eks_access.grants(function, targets)
    return tuple(grant.in_sandbox() for grant in grants) if sandbox else grants
