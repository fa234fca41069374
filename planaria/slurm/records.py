"""One job as slurmctld keeps it, read from JSON or text of any version."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planaria.core.errors import InvalidInput
from planaria.slurm import hostlist, json_form, marks, text_form
from planaria.slurm.nodes import no_json
from planaria.slurm.programs import Slurm, SlurmError, Unreadable

ID = re.compile(r"(\d{1,10})(?:_(\d{1,7})|\+(\d{1,4}))?")

ENDED = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("OUT_OF_MEMORY", "SPECIAL_EXIT", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    }
)
STATES = ENDED | {"PENDING", "RUNNING", "SUSPENDED"}
ENDING = frozenset({"COMPLETING", "STAGE_OUT", "SIGNALING"})
SHADES = frozenset(
    {"CONFIGURING", "RESIZING", "STOPPED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"}
)
SHADES_EXTRA = frozenset({"SPECIAL_EXIT", "UPDATE_DB", "POWER_UP_NODE", "EXPEDITING", "STAGE_OUT"})

TEXT_KEYS = (
    *(
        "JobId",
        "ArrayJobId",
        "ArrayTaskId",
        "HetJobId",
        "HetJobOffset",
        "JobName",
        "UserId",
        "Priority",
        "Account",
    ),
    *(
        "JobState",
        "Reason",
        "Requeue",
        "Restarts",
        "BatchFlag",
        "ExitCode",
        "TimeLimit",
        "SubmitTime",
        "StartTime",
    ),
    *(
        "EndTime",
        "Partition",
        "ReqNodeList",
        "ExcNodeList",
        "NodeList",
        "NumNodes",
        "NumTasks",
        "Reservation",
    ),
    *(
        "Command",
        "WorkDir",
        "Comment",
        "AdminComment",
        "StdErr",
        "StdOut",
        "NtasksPerN:B:S:C",
        "TresPerNode",
        "OverSubscribe",
    ),
)


@dataclass(frozen=True, slots=True)
class Record:
    """One job as slurmctld keeps it: a whole job, a task of an array or a component of a heterogeneous job.

    raw: Slurm's own number. target: what an update of this record alone must name, since the number of the
    last task of an array is that of the whole array. root: the number of a heterogeneous job's leader; leads:
    it is that one. exclusive: it wants its nodes for itself.
    state: the base state, "" while only COMPLETING is shown. completing: processes may be left on the nodes.
    Times are epoch seconds, 0 for none.
    """

    raw: str
    id: str
    offset: int
    state: str
    completing: bool
    reason: str
    nodes: tuple[str, ...]
    node_count: int
    most_nodes: int
    tasks: int
    ranks_per_node: int
    batch: bool
    requeue: bool
    restarts: int
    held: bool
    required: str
    excluded: str
    reservation: str
    comment: str
    admin_comment: str
    user: str
    name: str
    exit_code: str
    submit: int
    start: int
    end: int
    root: str = "0"
    target: str = ""
    leads: bool = False
    exclusive: bool = True
    partitions: tuple[str, ...] = ()
    gres: str = ""

    @property
    def part(self) -> str:
        """What an update names that is about this record and no other component."""
        return f"{self.root}+{self.offset}" if self.leads or self.root != self.raw else self.target

    @property
    def live(self) -> bool:
        """It has processes on its nodes, or may have."""
        return self.completing or self.state in ("RUNNING", "SUSPENDED")


def read(slurm: Slurm) -> list[Record]:
    """All that Slurm remembers. Raises SlurmError; a job that is there is never left out."""
    what = "the answer of `squeue --json`"
    try:
        # All of them: releases differ in what they leave out when single ids or nodes are asked for.
        printed = slurm.ask("squeue", "--json", "--all", "--states=all")
    except SlurmError as error:
        if isinstance(error, Unreadable) or not no_json(error):
            raise
        return _by_text(slurm)
    return [_from_json(row, what) for row in json_form.rows(printed, "jobs", what)]


def _from_json(row: dict[str, Any], what: str) -> Record:
    raw = json_form.number(row, "job_id")
    words = json_form.words(row, "job_state")
    if not raw or not words:
        raise Unreadable(f"{what} has a job without an id or a state")
    state, completing = _state(words, what)
    array = json_form.number(row, "array_job_id") or 0
    task = json_form.number(row, "array_task_id")
    waiting = json_form.text(row, "array_task_string")
    if task is None and waiting.isdigit():
        task = int(waiting)  # an array that has one task left in the queue has its number only here
    het = json_form.number(row, "het_job_id") or 0
    priority = json_form.number(row, "priority")
    tasks = json_form.number(row, "tasks") or 0
    count = json_form.number(row, "node_count") or 0
    return Record(
        raw=str(raw),
        id=_id(raw, array, task, het, json_form.text(row, "admin_comment")),
        root=str(het or raw),
        leads=het == raw,
        target=f"{array}_{task}" if array and task is not None else str(raw),
        offset=(json_form.number(row, "het_job_offset") or 0) if het else 0,
        state=state,
        completing=completing,
        # The description, where there is one, is what scontrol shows: by the plain reason a job whose launch
        # failed is held by its user.
        reason=json_form.text(row, "state_description") or _plain(json_form.text(row, "state_reason")),
        nodes=_names(json_form.text(row, "nodes"), what),
        node_count=count,
        most_nodes=max(count, json_form.number(row, "max_nodes") or 0),
        tasks=tasks,
        ranks_per_node=_ranks(json_form.number(row, "tasks_per_node") or 0, tasks, count),
        batch=bool(json_form.flag(row, "batch_flag")),
        requeue=bool(json_form.flag(row, "requeue")),
        restarts=json_form.number(row, "restart_cnt") or 0,
        held=bool(json_form.flag(row, "hold")) or priority == 0,
        required=json_form.text(row, "required_nodes"),
        excluded=json_form.text(row, "excluded_nodes"),
        reservation=json_form.text(row, "resv_name"),
        comment=json_form.text(row, "comment"),
        admin_comment=json_form.text(row, "admin_comment"),
        user=json_form.text(row, "user_name"),
        name=json_form.text(row, "name"),
        exit_code=_exit_code(row.get("exit_code")),
        submit=json_form.number(row, "submit_time") or 0,
        start=json_form.number(row, "start_time") or 0,
        end=json_form.number(row, "end_time") or 0,
        partitions=tuple(part for part in json_form.text(row, "partition").split(",") if part),
        exclusive="none" in map(str.lower, json_form.words(row, "shared"))
        or "true" in map(str.lower, json_form.words(row, "exclusive")),
        gres=json_form.text(row, "tres_per_node"),
    )


def _by_text(slurm: Slurm) -> list[Record]:
    what = "the answer of `scontrol show job`"
    printed = slurm.ask("scontrol", "--all", "--oneliner", "show", "job")
    needed = ("JobId", "JobState", "NodeList", "NumNodes", "Requeue", "Restarts", "SubmitTime", "WorkDir")
    found: dict[str, Record] = {}
    odd = 0
    for line in printed.splitlines():
        if not line.strip() or line.startswith("No jobs"):
            continue
        try:
            record = _from_text(text_form.fields(line, TEXT_KEYS, needed, what), what)
            found[record.raw] = record
        except Unreadable:
            odd += 1
    # A user chooses names and comments, and must not blind us to the jobs of all others.
    return list((_plainly(slurm, found) if odd else found).values())


def _plainly(slurm: Slurm, found: dict[str, Record]) -> dict[str, Record]:
    """And those whose line could not be read, by fields that nobody can write into: where they are, and no
    more. Such a job is neither stopped nor started again here."""
    what = "the answer of `squeue`"
    printed = slurm.ask("squeue", "--noheader", "--all", "--states=all", "--format=%A|%T|%N|%D")
    if printed and not printed.endswith("\n"):
        raise Unreadable(f"{what} is cut")
    seen = {}
    for line in printed.splitlines():
        raw, _, rest = line.strip().partition("|")
        parts = rest.split("|")
        if not raw.isdigit() or len(parts) != 3:
            raise Unreadable(f"{what} has a line that is no job: {line!r:.80}")
        plain = {"JobId": raw, "JobState": parts[0], "NodeList": parts[1], "NumNodes": parts[2]}
        rest_of_it = {"Requeue": "0", "Restarts": "0", "SubmitTime": "0", "BatchFlag": "0"}
        seen[raw] = found.get(raw) or _from_text({**plain, **rest_of_it}, what)
    return {**seen, **found}


def _from_text(row: dict[str, str], what: str) -> Record:
    state, completing = _state([row["JobState"]], what)
    array = _int(row.get("ArrayJobId", ""))
    tasks, count = _int(row.get("NumTasks", "")), _int(row["NumNodes"].partition("-")[0])
    per_node = row.get("NtasksPerN:B:S:C", "").partition(":")[0]
    task = row.get("ArrayTaskId", "")
    raw = _int(row["JobId"])
    number, het = int(task) if task.isdigit() else None, _int(row.get("HetJobId", ""))
    return Record(
        raw=str(raw),
        id=_id(raw, array, number, het, row.get("AdminComment", "")),
        root=str(het or raw),
        leads=het == raw,
        target=f"{array}_{number}" if array and number is not None else str(raw),
        offset=_int(row.get("HetJobOffset", "")),
        state=state,
        completing=completing,
        reason=_plain(row.get("Reason", "")),
        nodes=_names(row["NodeList"], what),
        node_count=count,
        most_nodes=max(count, _int(row["NumNodes"].rpartition("-")[2])),
        tasks=tasks,
        ranks_per_node=_ranks(_int(per_node), tasks, count),
        batch=row.get("BatchFlag", "0") != "0",
        requeue=row["Requeue"] == "1",
        restarts=_int(row["Restarts"]),
        held=row.get("Priority", "") == "0",
        required=row.get("ReqNodeList", ""),
        excluded=row.get("ExcNodeList", ""),
        reservation=row.get("Reservation", ""),
        comment=row.get("Comment", ""),
        admin_comment=row.get("AdminComment", ""),
        user=row.get("UserId", "").partition("(")[0],
        name=row.get("JobName", ""),
        exit_code=row.get("ExitCode", ""),
        submit=_int(row["SubmitTime"]),
        start=_int(row.get("StartTime", "")),
        end=_int(row.get("EndTime", "")),
        partitions=tuple(part for part in row.get("Partition", "").split(",") if part),
        exclusive=row.get("OverSubscribe", "NO") in ("NO", "EXCLUSIVE"),
        gres=row.get("TresPerNode", ""),
    )


def _state(words: Sequence[str], what: str) -> tuple[str, bool]:
    """(base state, completing). 22.05 writes COMPLETING in place of the base state."""
    bases = [word for word in words if word in STATES]
    rest = [word for word in words if word not in STATES]
    if len(bases) > 1 or any(word not in ENDING | SHADES | SHADES_EXTRA for word in rest):
        raise Unreadable(f"{what} has a job in state {'+'.join(words)}, which is not known here")
    if bases:
        return bases[0], bool(set(rest) & ENDING)
    alone = {"CONFIGURING": "RUNNING", "RESIZING": "RUNNING", "STOPPED": "SUSPENDED", "SIGNALING": "RUNNING"}
    queued = {
        "REQUEUED": "PENDING",
        "REQUEUE_HOLD": "PENDING",
        "REQUEUE_FED": "PENDING",
        "RESV_DEL_HOLD": "PENDING",
    }
    state = next((found for word in rest if (found := {**alone, **queued}.get(word))), "")
    return state, bool(set(rest) & {"COMPLETING", "STAGE_OUT"})


def _id(raw: int, array: int, task: int | None, het: int, admin_comment: str) -> str:
    # A job that was submitted again goes on under its first id. Only operators write AdminComment.
    first = marks.read(admin_comment).get("job", "")
    if ID.fullmatch(first):
        return first
    if het:
        return str(het)
    return f"{array}_{task}" if array and task is not None else str(raw)


def listed(text: str) -> list[str]:
    """The names of a list that a user wrote; one that cannot be read names nobody here."""
    try:
        return hostlist.expand(text)
    except InvalidInput:
        return []


def _names(text: str, what: str) -> tuple[str, ...]:
    try:
        return tuple(hostlist.expand("" if text in ("(null)", "None assigned") else text))
    except InvalidInput as error:
        raise Unreadable(f"{what} has a job whose nodes cannot be read: {error}") from None


def _ranks(per_node: int, tasks: int, count: int) -> int:
    if per_node > 0:
        return per_node
    return max(1, tasks // count) if count > 0 else 1


def _exit_code(value: Any) -> str:
    """`code:signal` as scontrol writes it; 22.05 gives the status of wait(2), later releases an object."""
    if isinstance(value, dict) and "number" in value:
        value = json_form.number({"": value}, "")  # 23.02: the status of wait(2) as a number object
    if isinstance(value, dict):
        code = json_form.number(value, "return_code") or 0
        by = value.get("signal")
        by = by if isinstance(by, dict) else {}
        signal = json_form.number(by, "id") or json_form.number(by, "signal_id")
        return f"{code}:{signal or 0}"
    if isinstance(value, int) and value >= 0:
        return f"{value >> 8 & 0xFF}:{value & 0x7F}"
    return ""


def _plain(reason: str) -> str:
    return "" if reason == "None" else reason


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0
