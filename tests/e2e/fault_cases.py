"""Every Task state of statemachines/*.asl.json and the story that leads through it.

The fault campaign on the emulator (test_fault_campaign.py) and its small sister on the twins
(tests/lambdas/test_every_task.py) are made from these tables and the ASL files together, so that a new state
cannot escape them: a Task without a story is named and fails both.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "statemachines"
EXECUTION = "{% $states.context.Execution.Id %}"
MACHINES = tuple(sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.asl.json")))


# --- the states ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """One Task state. within: the States object that holds it, as (Parallel state, number of the branch)
    pairs from the machine down; () for the machine's own. callback: it waits for a task token."""

    machine: str
    state: str
    within: tuple[tuple[str, int], ...]
    callback: bool

    def __str__(self) -> str:
        return f"{self.machine}: {self.state}"


def definition(machine: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{machine}.asl.json").read_text(encoding="utf-8")))


def tasks() -> list[Task]:
    """Every Task state, however deep, in the order of the files."""
    return [task for machine in MACHINES for task in _tasks(machine, definition(machine), ())]


def _tasks(machine: str, level: Mapping[str, Any], within: tuple[tuple[str, int], ...]) -> Iterator[Task]:
    for name, state in level["States"].items():
        if state["Type"] == "Task":
            yield Task(machine, name, within, state["Resource"].endswith(".waitForTaskToken"))
        for number, branch in enumerate(state.get("Branches", [])):
            yield from _tasks(machine, branch, (*within, (name, number)))
        assert not {"ItemProcessor", "Iterator"} & set(state), (
            f"{machine}: the campaign knows no Map ({name})"
        )


def task_states(level: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, state) of every Task in a definition, to be changed in place."""
    for name, state in level["States"].items():
        if state["Type"] == "Task":
            yield name, state
        for branch in state.get("Branches", []):
            yield from task_states(branch)


def starting_at(machine: Mapping[str, Any], task: Task, execution: str) -> dict[str, Any]:
    """The same machine with another StartAt: what a redrive of an execution that failed there does.

    A redrive keeps the ARN of its execution, so that stands where the machine asks for it. For a state in a
    branch, the branch as a machine of its own. machine: any definition with the states of the task's.
    """
    level = json.loads(json.dumps(machine).replace(EXECUTION, execution))
    for name, number in task.within:
        branch = level["States"][name]["Branches"][number]
        level = {"QueryLanguage": level["QueryLanguage"], **branch}
    return {**level, "StartAt": task.state}


# --- the faults ----------------------------------------------------------------------------------


class Fault(StrEnum):
    """What befalls the first call that a Task state makes of its Lambda.

    BEFORE: the process dies before it has done anything. AFTER: it dies when the handler has returned, so
    that all is done and nobody is told. TWICE: the call is delivered two times. LATE: the work is begun only
    after the state's time-out, beside whatever the workflow does by then. SLOW: the work is done at once and
    the answer comes after the time-out. THROTTLED: AWS refuses every call of the first two tries and every
    second one of the third.
    """

    BEFORE = "before"
    AFTER = "after"
    TWICE = "twice"
    LATE = "late"
    SLOW = "slow"
    THROTTLED = "throttled"


# --- the stories ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lead:
    """How a story is led: the first `times` calls of this state are answered so instead of by the Lambda.

    answer: None loses the call (a callback state then waits for its time-out).
    """

    machine: str
    state: str
    answer: Mapping[str, Any] | None
    times: int = 1


@dataclass(frozen=True, slots=True)
class Story:
    """begin: what happens to a node that works for a job, or to a warm pool (a name that both tests know).
    outcome: of the node's incident, "" when there must be none. resume: how the job's resume ends, "" when
    there must be none. launched: instances launched for it in all, of which at most one lives at any time.
    isolated: we keep the node isolated in the end. old_stays: the replaced instance is not terminated.
    approve: the policy's mode. answer: a person's word in that mode. spares: of the node group, in the end;
    only stories about a warm pool have some. durable: steps that are safe in S3 in the end; only stories
    about checkpoints have some."""

    begin: str
    outcome: str
    resume: str = ""
    launched: int = 0
    isolated: bool = False
    old_stays: bool = False
    approve: bool = False
    answer: str = ""
    leads: tuple[Lead, ...] = field(default=())
    spares: int = 0
    durable: int = 0

    @property
    def served(self) -> bool:
        """A replacement has taken the node's place in the end."""
        return self.outcome == "HEALED" and self.launched > 0


def refused(reason: str) -> dict[str, Any]:
    return {"result": "REFUSED", "reason": reason}


HEAL, RESUME, ISOLATE, LAUNCH = "heal_node", "resume_job", "isolate_node", "launch_replacement"
REFILL, RESTORE, SYNC = "refill_spares", "restore_checkpoint", "sync_checkpoints"
NO_CAPACITY = {"result": "NO_CAPACITY", "reason": "none is to be had", "retry_after": 0}
BOBS = "the node is isolated by someone else (cable swap); it is left alone"
LONG = {"result": "WAIT", "reason": "the list is still out", "seconds": 1}
LONG_TRIES = 120
"""After so many tries without a list an execution hands over to the next (see `Planned?`)."""

CAPACITY_TRIES = 90
"""After so many tries without capacity an execution hands over to the next (see `Launched?`)."""

STORIES: dict[str, Story] = {
    # A GPU that has fallen off the bus: the node is replaced.
    "replaced": Story("xid", "HEALED", "HEALED", 1),
    "late report": Story(
        "xid", "HEALED", "HEALED", 1, leads=(Lead(HEAL, "Wait for the node", None),)
    ),
    "second replacement": Story(
        "xid", "HEALED", "HEALED", 2, leads=(Lead(HEAL, "Verify", refused("GPU 3 is missing")),)
    ),
    "refused admission": Story(
        "xid", "ESCALATED", "", 1, isolated=True, leads=(Lead(HEAL, "Admit", refused("no such name")),)
    ),
    "no capacity": Story(
        "xid", "HEALED", "HEALED", 1, leads=(Lead(HEAL, "Launch", NO_CAPACITY, CAPACITY_TRIES),)
    ),
    # Orders and lesser faults.
    "moved": Story("replace it", "HEALED", "HEALED", 1),
    # AWS retires it in an hour: it works until its replacement is ready.
    "retired": Story("retire it", "HEALED", "HEALED", 1),
    "rebooted": Story("reboot it", "HEALED", "HEALED"),
    "gpu reset": Story("reset it", "HEALED", "HEALED"),
    "reset, then more": Story(
        "reset it", "HEALED", "HEALED", leads=(Lead(HEAL, "Reset the GPU", refused("it is in use")),)
    ),
    # A person is asked first.
    "approved": Story("xid", "HEALED", "HEALED", 1, approve=True, answer="yes"),
    "approved late": Story(
        "xid", "HEALED", "HEALED", 1, approve=True, answer="yes",
        leads=(Lead(HEAL, "Ask for approval", None),),
    ),
    "rejected": Story("xid", "CANCELLED", approve=True, answer="no"),
    # The job alone.
    "process died": Story("process exit", "", "HEALED"),
    "late step": Story("process exit", "", "HEALED", leads=(Lead(RESUME, "Wait for a step", None),)),
    "no checkpoint": Story(
        "process exit", "", "ESCALATED",
        leads=(Lead(RESUME, "Choose the checkpoint", refused("no checkpoint is there")),),
    ),
    # Its folder of checkpoints is empty, and S3 has them.
    "restored": Story("wipe its folder", "", "HEALED"),
    "restored, late word": Story(
        "wipe its folder", "", "HEALED", leads=(Lead(RESUME, "Wait for the restore", None),)
    ),
    "not restored": Story(
        "wipe its folder", "", "ESCALATED",
        leads=(Lead(RESTORE, "Bring", refused("restore 1 of job gpt: no room")),),
    ),
    # A step on the file system becomes durable in S3.
    "synced": Story("save a step", "", durable=1),
    "synced later": Story("save a step", "", durable=1, leads=(Lead(SYNC, "Plan", refused("no such job")),)),
    "synced on": Story("save a step", "", durable=1, leads=(Lead(SYNC, "Plan", LONG, LONG_TRIES),)),
    # A person takes a node out of work, and orders another one for it.
    "taken out": Story("isolate it", "RETIRED", "", isolated=True),
    "not taken out": Story(
        "isolate it", "ESCALATED", "", leads=(Lead(ISOLATE, "Isolate", refused(BOBS)),)
    ),
    "launched": Story("launch for it", "HEALED", "HEALED", 1, old_stays=True),
    "launched, late report": Story(
        "launch for it", "HEALED", "HEALED", 1, old_stays=True,
        leads=(Lead(LAUNCH, "Wait for the node", None),),
    ),
    "launched, second one": Story(
        "launch for it", "HEALED", "HEALED", 2, old_stays=True,
        leads=(Lead(LAUNCH, "Verify", refused("GPU 3 is missing")),),
    ),
    "launched, refused": Story(
        "launch for it", "ESCALATED", "", 1, isolated=True, old_stays=True,
        leads=(Lead(LAUNCH, "Admit", refused("no such name")),),
    ),
    "launched, no capacity": Story(
        "launch for it", "HEALED", "HEALED", 1, old_stays=True,
        leads=(Lead(LAUNCH, "Launch", NO_CAPACITY, CAPACITY_TRIES),),
    ),
    # A person fills the warm pool; sweep would do it a minute later.
    "pool filled": Story("fill the pool", "", launched=1, spares=1),
    "pool filled, late report": Story(
        "fill the pool", "", launched=1, spares=1, leads=(Lead(REFILL, "Wait for the node", None),)
    ),
    "pool filled later": Story(
        "fill the pool", "", launched=1, spares=1, leads=(Lead(REFILL, "Launch", refused("not authorized")),)
    ),
}  # fmt: skip

STORY_OF: dict[str, dict[str, str]] = {
    HEAL: {
        "Begin": "replaced",
        "Ask for approval": "approved",
        "Look for the answer": "approved late",
        "Cancel": "rejected",
        "Launch first": "retired",
        "Save a checkpoint": "moved",
        "Isolate": "replaced",
        "Launch": "replaced",
        "Go on later": "no capacity",
        "Reset the GPU": "gpu reset",
        "Climb": "reset, then more",
        "Reboot": "rebooted",
        "Wait for the node": "replaced",
        "Look for the node": "late report",
        "Give back the lost one": "second replacement",
        "Launch again": "second replacement",
        "Verify": "replaced",
        "Admit": "replaced",
        "Give back the replacement": "refused admission",
        "Tell the job": "replaced",
        "Retire": "replaced",
        "Close": "replaced",
        "Escalate": "refused admission",
    },
    RESUME: {
        "Begin": "process died",
        "Choose the checkpoint": "process died",
        "Wait for the restore": "restored",
        "Look for the restore": "restored, late word",
        "Requeue": "process died",
        "Wait for a step": "process died",
        "Look for a step": "late step",
        "Close": "process died",
        "Escalate": "no checkpoint",
    },
    ISOLATE: {
        "Begin": "taken out",
        "Save a checkpoint": "taken out",
        "Isolate": "taken out",
        "Close": "taken out",
        "Escalate": "not taken out",
    },
    LAUNCH: {
        "Begin": "launched",
        "Launch": "launched",
        "Go on later": "launched, no capacity",
        "Wait for the node": "launched",
        "Look for the node": "launched, late report",
        "Give back the lost one": "launched, second one",
        "Launch again": "launched, second one",
        "Verify": "launched",
        "Admit": "launched",
        "Give back the replacement": "launched, refused",
        "Tell the job": "launched",
        "Close": "launched",
        "Escalate": "launched, refused",
    },
    RESTORE: {
        "Begin": "restored",
        "Choose": "restored",
        "Bring": "restored",
        "Settle": "restored",
        "Close": "restored",
        "Escalate": "not restored",
    },
    SYNC: {
        "Begin": "synced",
        "Plan": "synced",
        "Start": "synced",
        "Follow": "synced",
        "Verify": "synced",
        "Record": "synced",
        "Retain": "synced",
        "Close": "synced",
        "Go on later": "synced on",
        "Escalate": "synced later",
    },
    REFILL: {
        "Begin": "pool filled",
        "Launch": "pool filled",
        "Wait for the node": "pool filled",
        "Look for the node": "pool filled, late report",
        "Close": "pool filled",
        "Escalate": "pool filled later",
    },
}


def story_name(task: Task) -> str:
    """Raises AssertionError with a sentence when nobody has written the story of a state."""
    name = STORY_OF.get(task.machine, {}).get(task.state)
    assert name is not None, (
        f"The Task state {task.state!r} of {task.machine} has no story in tests/e2e/fault_cases.py: add to "
        "STORY_OF the story that leads through it, so that crashes, duplicates and time-outs there are tried."
    )
    assert name in STORIES, f"STORY_OF names the story {name!r} for {task}, which STORIES does not have"
    return name


def story_of(task: Task) -> Story:
    return STORIES[story_name(task)]


def tasks_of(story: str) -> list[Task]:
    """The Task states that this story is told for."""
    return [task for task in tasks() if STORY_OF.get(task.machine, {}).get(task.state) == story]


def left_over() -> list[str]:
    """Entries of the tables that mean no state of any machine."""
    known = {(task.machine, task.state) for task in tasks()}
    named = {(machine, state) for machine, states in STORY_OF.items() for state in states}
    leads = {(lead.machine, lead.state) for story in STORIES.values() for lead in story.leads}
    told = {story for states in STORY_OF.values() for story in states.values()}
    wrong = sorted(f"{machine}: {state}" for machine, state in (named | leads) - known)
    return wrong + sorted(f"story {name!r}" for name in set(STORIES) - told)
