"""`planaria replace`, `reboot`, `reset` and `remove`: a person starts heal_node, as from the AWS console."""

import getpass
import os
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.text import Text

from planaria.cli import options, records, screen
from planaria.cli.incidents import bar_width, timeline
from planaria.cli.target import Target, connect
from planaria.core import console
from planaria.core.errors import PermanentError, TransientError
from planaria.core.incident import incident_id
from planaria.core.table import Row

app = typer.Typer()
CLAIM_SECONDS = 90.0
FOLLOW_SECONDS = 3600.0
POLL_SECONDS = {True: 0.25, False: 2.0}
"""By whether it is a sandbox."""

Node = Annotated[
    str, typer.Argument(metavar="NODE", help="An EC2 instance id or a scheduler name.", show_default=False)
]
Reason = Annotated[str, typer.Option(help="Why; it stands in the ledger.", show_default=False)]
Override = Annotated[
    bool, typer.Option("--override-breaker", help="Go on also where the breaker would refuse it.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the incident to its end.")]


HELP = {
    "replace": """Isolate a node, launch its replacement, move the job there and terminate the node.

    Example: planaria replace demo-3 --reason "GPU 3 is slow" --wait
    """,
    "reboot": """Isolate a node, reboot it, and let it work again when its check passes.

    Example: planaria reboot demo-3 --wait
    """,
    "reset": """Isolate a node, reset its GPUs (else: reboot it), and let it work again when its check passes.

    Example: planaria reset demo-3 --wait
    """,
    "remove": """Take a node out on purpose: isolate and terminate it, and lower the group's wanted size.

    A node that a job needs is refused: replace it, or stop the job first.

    Example: planaria remove demo-4 --reason "the reservation ends"
    """,
}
"""What each order's --help says."""


def _command(verb: str) -> Callable[..., None]:
    def order(
        node: Node,
        reason: Reason = "",
        override_breaker: Override = False,
        wait: Wait = False,
        as_json: options.Json = False,
        cluster: options.Cluster = options.DEFAULT_CLUSTER,
        folder: options.Folder = None,
        aws: options.Aws = False,
    ) -> None:
        _order(connect(cluster, folder, aws), verb, node, reason, override_breaker, wait, as_json)

    return order


for _verb, _help in HELP.items():
    app.command(_verb, help=_help)(_command(_verb))


def _order(
    target: Target, verb: str, text: str, reason: str, override: bool, wait: bool, as_json: bool
) -> None:
    gateways = target.gateways
    node = records.find_node(gateways.ledger.nodes(), text)
    document: dict[str, Any] = {
        "node_id": node,
        "action": verb,
        "reason": reason or f"`planaria {verb}` by {person()}",
    }
    if override:
        document["override_breaker"] = True
    console.node_order("heal_node", document)
    execution, _ = gateways.workflows.start("heal_node", _execution_name(verb, node), document)
    name = _claimed(target, node, execution)
    if not wait:
        if as_json:
            screen.emit({"incident_id": name, "node_id": node, "action": verb, "execution_arn": execution})
        else:
            screen.say(f"Incident {name} is under way; `planaria incident {name}` shows it.", stderr=False)
        return
    follow(target, name, as_json)


def follow(target: Target, name: str, as_json: bool) -> None:
    """Show an incident until its end. Raises PermanentError when that is no good one, TransientError when it
    takes too long."""
    shown = screen.console(stderr=as_json)
    with screen.Stages(shown) as stages:
        stages.note(Text(f"incident {name}", style="bold"))

        def told(head: Row, step: Row) -> None:
            stages.note(records.step_line(head, step))

        poll = POLL_SECONDS[target.head is not None]
        seen = records.follow(
            target.gateways, name, FOLLOW_SECONDS, told, lambda waits: stages(f"healing: {waits}"), poll
        )
    if not seen.ended:
        raise TransientError(
            f"incident {name} is still under way after {screen.span(FOLLOW_SECONDS)}, waiting until "
            f"{seen.waits}; `planaria incident {name}` shows how it goes on"
        )
    if as_json:
        screen.emit(records.incident_document(seen.head, seen.steps))
    else:
        shown.print(timeline(seen.head, seen.steps, bar_width(shown.width)))
        line = (
            Text("Incident ") + Text(name, style="bold") + Text(" ended ") + screen.word(seen.head["outcome"])
        )
        shown.print(line + Text("."))
    if seen.head["outcome"] not in records.ENDED_WELL:
        why = seen.head.get("outcome_reason") or "no reason was recorded"
        raise PermanentError(f"incident {name} ended {seen.head['outcome']}: {why}")


def _claimed(target: Target, node: str, execution: str) -> str:
    """The incident that this execution has claimed. Raises PermanentError with the machine's own sentence
    when it was refused."""
    deadline = time.monotonic() + CLAIM_SECONDS
    while True:
        ended = target.client("stepfunctions").describe_execution(executionArn=execution)
        row: dict[str, Any] = target.gateways.ledger.node(node) or {}
        mine = row.get("claim_id") == execution
        if mine and row.get("execution_arn") == execution:
            return incident_id(node, int(row["session"]))
        if ended["status"] == "SUCCEEDED" and mine:
            return incident_id(node, int(row["session"]))
        if ended["status"] in ("FAILED", "ABORTED", "TIMED_OUT"):
            raise PermanentError(str(ended.get("cause") or f"the workflow ended {ended['status']}"))
        if time.monotonic() > deadline:
            raise TransientError(
                f"the workflow has not begun within {screen.span(CLAIM_SECONDS)}; look at {execution} in "
                "the Step Functions console"
            )
        time.sleep(POLL_SECONDS[target.head is not None])


def _execution_name(verb: str, node: str) -> str:
    """Unique, and at most 80 characters of those that Step Functions takes."""
    return f"cli-{verb}-{node}-{time.time_ns() // 1_000_000}-{os.urandom(3).hex()}"


def person() -> str:
    """Who runs this command, for the ledger."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "a person"
