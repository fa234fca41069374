"""An Incident is one claimed session of one node, from claim to outcome."""

import hashlib
import re
from enum import StrEnum

from planaria.core.errors import InvalidInput

NODE_ID = re.compile(r"^i-[0-9a-f]{8,17}$")


class Phase(StrEnum):
    """Where a session stands: two active phases, five outcomes."""

    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    HEALED = "HEALED"
    RETIRED = "RETIRED"
    CANCELLED = "CANCELLED"
    SUPERSEDED = "SUPERSEDED"
    ESCALATED = "ESCALATED"


ACTIVE = (Phase.CLAIMED.value, Phase.RUNNING.value)


class Step(StrEnum):
    """The steps of a timeline, in the order in which people read them."""

    DETECTED = "detected"
    TRIAGED = "triaged"
    BEGUN = "begun"
    APPROVAL_ASKED = "approval_asked"
    APPROVED = "approved"
    CHECKPOINT_ASKED = "checkpoint_asked"
    CHECKPOINT_SAVED = "checkpoint_saved"
    CHECKPOINT_DURABLE = "checkpoint_durable"
    ISOLATED = "isolated"
    JOB_STOPPED = "job_stopped"
    RESET = "gpu_reset"
    TO_REBOOT = "went_on_to_reboot"
    REBOOTED = "rebooted"
    TO_REPLACE = "went_on_to_replace"
    LAUNCHED = "replacement_launched"
    READY = "node_ready"
    VERIFIED = "node_verified"
    JOINED = "node_joined"
    JOB_RESUMED = "job_resumed"
    FIRST_STEP = "first_new_step"
    RETIRED = "node_retired"
    CLOSED = "closed"


def node_id(value: object, where: str) -> str:
    """The value as an EC2 instance id, or InvalidInput that says where it stood."""
    if isinstance(value, str) and NODE_ID.match(value):
        return value
    raise InvalidInput(f"{where} must be an EC2 instance id such as i-0123456789abcdef0, got {value!r:.60}")


def incident_id(node: str, session: int) -> str:
    return f"{node}-{session}"


def split_incident_id(text: str) -> tuple[str, int]:
    """The node and session of an incident id; InvalidInput when it is none."""
    node, _, session = text.rpartition("-")
    if NODE_ID.match(node) and session.isdigit():
        return node, int(session)
    raise InvalidInput(f"{text!r:.80} is no incident id; `planaria incidents` lists them")


def execution_name(node: str, session: int, attempt: int) -> str:
    """Unique per session and attempt, at most 80 characters of [A-Za-z0-9-]: the limit of Step Functions."""
    return f"heal-{node}-{session}-{attempt}"


def continuation_name(node: str, session: int, attempt: int, number: int) -> str:
    """Of the execution in which an attempt goes on for the `number`th time."""
    return f"{execution_name(node, session, attempt)}-c{number}"


def resume_name(job: str, attempt: int) -> str:
    """As execution_name, for a job. A long job id keeps its head and a digest of the whole."""
    legal = re.sub(r"[^A-Za-z0-9_-]", "-", job)
    if legal != job or len(legal) > 56:
        legal = f"{legal[:43]}-{hashlib.sha256(job.encode()).hexdigest()[:12]}"
    return f"resume-{legal}-{attempt}"


def isolation_reason(incident: str) -> str:
    """What our isolation writes into the scheduler; the prefix marks it as ours."""
    return f"planaria:{incident}"


def next_session(now: float, previous: int | None) -> int:
    """The claim's epoch milliseconds; previous + 1 where the clocks disagree."""
    return max(int(now * 1000), (previous or 0) + 1)


def launch_token(incident: str, number: int, offering: str) -> str:
    """ClientToken of a launch: 64 ASCII characters at most; another offering or try has another token."""
    return hashlib.sha256(f"{incident}/{number}/{offering}".encode()).hexdigest()[:48]
