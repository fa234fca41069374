"""`planaria sandbox up|down|status` and `planaria inject`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from planaria.cli import options, screen
from planaria.cli.target import connect, need_head, sandbox_folder, short
from planaria.core.errors import InvalidInput, PlanariaError

app = typer.Typer(no_args_is_help=True, help="The whole system on this machine, without an AWS account.")
faults = typer.Typer()

FAULTS = {
    "xid79": "the kernel log says Xid 79 (a lost GPU), then the node's ranks die",
    "broken-gpu": "as xid79, and no reboot brings the GPU back",
    "bad-gpu": "Xid 48; all GPUs are there, but one fails the deep check, whatever repairs it",
    "stuck-gpu": "Xid 119; no reset of the GPU succeeds, a reboot helps",
    "kernel-line": "any line in the kernel log (--line)",
    "spot": "EC2 gives the two-minute spot notice, then takes the instance",
    "terminate": "the instance is gone without a warning",
    "reboot": "somebody reboots the instance through EC2",
    "kill-node": "every process of the node dies, the instance stays `running`",
    "kill-rank": "one training process dies, the node is well",
    "foreign-drain": "a person takes the node out of the scheduler (--reason)",
}
ENDLESS = {"steps": 100_000, "step_seconds": 0.2}
"""The demo's job goes on for hours in a sandbox that stays, and leaves the machine room for other work."""


@app.command("up")
def up(
    boot_seconds: Annotated[
        float, typer.Option("--boot-seconds", min=0, max=3600, help="How long an instance boots.")
    ] = 3.0,
    time_scale: Annotated[
        float,
        typer.Option("--time-scale", min=0.001, max=1, help="What waits and time-outs are multiplied by."),
    ] = 0.1,
    port: options.Port = 0,
    auth: Annotated[bool, typer.Option("--auth", help="The emulator enforces IAM.")] = False,
    job: Annotated[bool, typer.Option("--job/--no-job", help="Start the training job gpt-demo.")] = True,
    cluster_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Cluster file, to try its policy; by default recipes/clusters/demo.yaml.",
            show_default=False,
        ),
    ] = None,
    as_json: options.Json = False,
    folder: options.Folder = None,
) -> None:
    """Start a sandbox: AWS emulator, this CDK app deployed to it, four nodes, a training job.

    It stays when this command has ended. Example: planaria sandbox up --boot-seconds 10
    """
    from planaria.sandbox.demo import JOB_ID, recipe
    from planaria.sandbox.interruption import interruptible
    from planaria.sandbox.kept_logs import LoggedWorld
    from planaria.sandbox.world import DEMO_CLUSTER, WorldConfig, default_folder

    file = cluster_file if cluster_file is not None else DEMO_CLUSTER
    name, size = _cluster(file)
    chosen = folder if folder is not None else default_folder(name)
    config = WorldConfig(
        folder=chosen,
        cluster_file=file,
        time_scale=time_scale,
        boot_seconds=boot_seconds,
        port=port,
        auth=auth,
        outlive=True,
    )
    with interruptible(), screen.Stages(screen.console(stderr=as_json)) as stages:
        world = LoggedWorld(config, stages)
        with world.ended_by_failure():
            world.up()
            if job:
                stages(f"starting the job {JOB_ID}")
                whole = recipe(ENDLESS)
                world.submit(JOB_ID, whole | {"nodes": min(size, whole["nodes"])})
    if as_json:
        screen.emit(status_document(chosen))
        return
    url = world.emulator.url if world.emulator is not None else ""
    where = "" if name == options.DEFAULT_CLUSTER else f" --cluster {name}"
    where = where if folder is None else f" --dir {folder}"
    shown = screen.console()
    shown.print(Text(f"\nThe sandbox runs in {short(chosen)}; the AWS emulator is at {url}."))
    for command, what in (
        ("planaria nodes", "its nodes"),
        (f"planaria inject xid79 --node {name}-{min(size, 3)}", "break one"),
        ("planaria incidents", "see it heal"),
        ("planaria sandbox down", "end it"),
    ):
        shown.print(Text(f"  {command}{where}".ljust(48 + len(where))) + Text(what, style="dim"))


def _cluster(file: Path) -> tuple[str, int]:
    """Name and number of nodes. Raises InvalidInput for a file that no sandbox can be made from."""
    from planaria.recipes import ClusterFile, Scheduler

    found = ClusterFile.load(file)
    if found.scheduler is not Scheduler.PROCESS:
        raise InvalidInput(
            f"{file}: scheduler must be 'process' for a sandbox, not '{found.scheduler.value}': its nodes "
            "are process groups of this machine; change it in a copy"
        )
    for warning in found.warnings():
        screen.say(f"{file}: {warning}")
    return found.name, sum(group.size for group in found.node_groups)


@app.command("down")
def down(
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
) -> None:
    """End a sandbox: every process and every file of it.

    Example: planaria sandbox down
    """
    from planaria.sandbox.folder import end
    from planaria.sandbox.interruption import uninterrupted

    chosen = sandbox_folder(cluster, folder)
    with uninterrupted():
        ended = end(chosen)
    if as_json:
        screen.emit({"folder": str(chosen), "ended": ended})
    elif ended:
        screen.say(f"The sandbox in {short(chosen)} is ended; nothing of it is left.", stderr=False)
    else:
        screen.say(f"No sandbox is in {short(chosen)}.", stderr=False)


@app.command("status")
def status(
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
) -> None:
    """Show what runs in a sandbox. The exit status is 1 when none runs.

    Example: planaria sandbox status --json
    """
    chosen = sandbox_folder(cluster, folder)
    document = status_document(chosen)
    if as_json:
        screen.emit(document)
    else:
        _show(document)
    if not document["running"]:
        raise typer.Exit(1)


_LISTED = "\n".join(f"[bold]{name:<15}[/bold]{what}" for name, what in FAULTS.items())
_HELP = f"""Break something in a sandbox, the way hardware and AWS break it.

Example: planaria inject xid79 --node demo-3

\b
{_LISTED}"""


@faults.command("inject", help=_HELP)
def inject(
    fault: Annotated[
        str, typer.Argument(metavar="FAULT", help="One of the faults above.", show_default=False)
    ],
    node: Annotated[
        str, typer.Option("--node", metavar="N", help="Scheduler name or instance id.", show_default=False)
    ] = "",
    line: Annotated[str, typer.Option(help="The text of kernel-line.", show_default=False)] = "",
    job: Annotated[str, typer.Option(metavar="ID", help="The job of kill-rank.", show_default=False)] = "",
    rank: Annotated[int, typer.Option(min=-1, help="The rank of kill-rank.", show_default=False)] = -1,
    reason: Annotated[str, typer.Option(help="The reason of foreign-drain.", show_default=False)] = "",
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
) -> None:
    if fault not in FAULTS:
        raise InvalidInput(f"unknown fault {fault!r:.60}; known are {', '.join(FAULTS)}")
    if not node and not (fault == "kill-rank" and job):
        raise InvalidInput("say which node with --node, such as --node demo-3")
    head = need_head(connect(cluster, folder, on_aws=False), "inject")
    wish: dict[str, Any] = {"fault": fault, "node": node}
    wish |= {k: v for k, v in (("line", line), ("job_id", job), ("reason", reason)) if v}
    if rank >= 0:
        wish["rank"] = rank
    injected = str(head.post("/inject", wish)["injected"])
    if as_json:
        screen.emit({"fault": fault, "node": node or None, "injected": injected})
    else:
        screen.say(injected, stderr=False)


def status_document(folder: Path) -> dict[str, Any]:
    """`running` and, when it does, everything that people and scripts want to know; no secrets."""
    from planaria.sandbox.world import attached

    document: dict[str, Any] = {"running": False, "folder": str(folder)}
    try:
        with attached(folder) as (running, head, saved):
            document |= {"cluster": saved["cluster"], "time_scale": saved["time_scale"]}
            document["emulator"] = {"url": running.url, "pid": running.pid, "log": str(running.log)}
            document["environment"] = running.environment()
            document |= {key: value for key, value in head.get("/status").items() if key not in document}
            document["running"] = True
    except PlanariaError as error:
        document["reason"] = str(error)
        return document
    for job_id, job in document.get("jobs", {}).items():
        job |= _training(folder / "jobs" / job_id)
    return document


def _training(folder: Path) -> dict[str, Any]:
    from planaria.sandbox.plots import read_points

    points = read_points(folder / "train.jsonl")
    if not points:
        return {"step": None, "loss": None, "stepped_at": None}
    return {"step": points[-1].step, "loss": points[-1].loss, "stepped_at": screen.iso(points[-1].at)}


def _show(document: dict[str, Any]) -> None:
    shown = screen.console()
    folder = short(Path(document["folder"]))
    if not document["running"]:
        reason = str(document.get("reason", ""))
        shown.print(Text(reason[:1].upper() + reason[1:] + "."), soft_wrap=True)
        return
    emulator = document["emulator"]
    line = Text("Sandbox ") + Text(str(document["cluster"]), style="bold") + Text(f" runs in {folder}")
    shown.print(line)
    pids = f"pid {emulator['pid']}, head pid {document['pid']}"
    shown.print(Text(f"AWS emulator {emulator['url']} ({pids})", "dim"))
    rows = []
    for name, node in sorted(document.get("scheduler", {}).items()):
        process = document.get("nodes", {}).get(node["node_id"], {})
        isolated = (node.get("isolated") or {}).get("reason")
        rows.append(
            (name, node["node_id"], process.get("stage"), node["state"], " ".join(node["jobs"]), isolated)
        )
    placed = {row[1] for row in rows}
    for node_id, process in sorted(document.get("nodes", {}).items()):
        if node_id not in placed and not process["name"]:
            rows.append(("a spare", node_id, process["stage"], None, "", None))
    shown.print(screen.table(("NODE", "ID", "PROCESS", "SCHEDULER", "JOBS", "ISOLATED BY"), rows))
    jobs = [
        (job_id, job["state"], job["attempt"], job["step"], f"{job['loss']:.3f}" if job["loss"] else None)
        for job_id, job in sorted(document.get("jobs", {}).items())
    ]
    if jobs:
        shown.print(screen.table(("JOB", "STATE", "ATTEMPT", "STEP", "LOSS"), jobs))
    else:
        shown.print(Text("No job runs."))
