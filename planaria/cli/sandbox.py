"""`planaria sandbox up|down|status` and `planaria inject`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from planaria.cli import options, screen
from planaria.cli.target import connect, need_head, short
from planaria.core.errors import InvalidInput, PlanariaError
from planaria.sandbox.errors import SandboxError

app = typer.Typer(no_args_is_help=True, help="The whole system on this machine, without an AWS account.")
faults = typer.Typer()

FAULTS = {
    "xid79": "the kernel log says Xid 79 (a GPU has fallen off the bus), then the node's ranks die",
    "broken-gpu": "as xid79, and no reboot brings the GPU back",
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

JOB = "gpt-demo"


@app.command("up")
def up(
    boot_seconds: Annotated[
        float, typer.Option("--boot-seconds", min=0, max=3600, help="How long an instance boots.")
    ] = 3.0,
    time_scale: Annotated[
        float, typer.Option("--time-scale", min=0.001, max=1, help="Sandbox seconds per second of a wait or time-out.")
    ] = 0.1,
    port: options.Port = 0,
    auth: Annotated[bool, typer.Option("--auth", help="The emulator enforces IAM.")] = False,
    job: Annotated[bool, typer.Option("--job/--no-job", help="Start the training job gpt-demo.")] = True,
    as_json: options.Json = False,
    folder: options.Folder = None,
) -> None:
    """Start a sandbox: AWS emulator, this CDK app deployed to it, four nodes, a training job.

    It stays when this command has ended. Example: planaria sandbox up --boot-seconds 10
    """
    from planaria.cli.signals import interruptible
    from planaria.sandbox.world import WorldConfig, default_folder

    chosen = folder if folder is not None else default_folder(options.DEFAULT_CLUSTER)
    check_free(chosen)
    config = WorldConfig(
        folder=chosen, time_scale=time_scale, boot_seconds=boot_seconds, port=port, auth=auth, outlive=True
    )
    with interruptible(), screen.Stages(screen.console(stderr=as_json)) as stages:
        world = start(config, stages)
        if job:
            try:
                stages(f"starting the job {JOB}")
                world.submit(JOB, recipe(ENDLESS))
            except BaseException:
                world.down()
                raise
    if as_json:
        screen.emit(status_document(chosen))
        return
    where = "" if folder is None else f" --dir {folder}"
    shown = screen.console()
    shown.print(Text(f"\nThe sandbox runs in {short(chosen)}; the AWS emulator is at {world.emulator.url}."))
    for command, what in (
        ("planaria nodes", "its nodes"),
        ("planaria inject xid79 --node demo-3", "break one"),
        ("planaria incidents", "see it heal"),
        ("planaria sandbox down", "end it"),
    ):
        shown.print(Text(f"  {command}{where}".ljust(48 + len(where))) + Text(what, style="dim"))


@app.command("down")
def down(
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
) -> None:
    """End a sandbox: every process and every file of it.

    Example: planaria sandbox down
    """
    from planaria.cli.signals import uninterrupted
    from planaria.sandbox.world import default_folder

    chosen = folder if folder is not None else default_folder(cluster)
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
    """Show what runs in a sandbox. Exit status 1 when none runs.

    Example: planaria sandbox status --json
    """
    from planaria.sandbox.world import default_folder

    chosen = folder if folder is not None else default_folder(cluster)
    document = status_document(chosen)
    if as_json:
        screen.emit(document)
    else:
        _show(document)
    if not document["running"]:
        raise typer.Exit(1)


@faults.command(
    "inject", epilog="Faults: " + " · ".join(f"[bold]{name}[/bold] {what}" for name, what in FAULTS.items())
)
def inject(
    fault: Annotated[str, typer.Argument(metavar="FAULT", help="One of the faults below.", show_default=False)],
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
    """Break something in a sandbox, the way hardware and AWS break it.

    Example: planaria inject xid79 --node demo-3
    """
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


# --- what the demo uses too ------------------------------------------------------------------------


def start(config: Any, stages: screen.Stages) -> Any:
    """A World that is up. config: a WorldConfig. When it cannot come up its logs are kept."""
    from planaria.sandbox.kept_logs import LoggedWorld

    return LoggedWorld(config, stages).up()


def recipe(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """recipes/jobs/gpt-demo.yaml, its training with these changes. Raises InvalidInput."""
    import yaml

    from planaria.sandbox.job_recipe import parse_job_recipe
    from planaria.sandbox.world import ROOT

    path = ROOT / "recipes/jobs/gpt-demo.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}); is this a whole clone?") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if isinstance(document, dict) and isinstance(document.get("training"), dict):
        document["training"] |= changes or {}
    parse_job_recipe(document, str(path))
    return dict(document)


def check_free(folder: Path) -> None:
    """A sandbox may be put here: its end removes the folder and everything in it. Raises InvalidInput."""
    from planaria.sandbox import emulator

    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder; choose another one with --dir")
    alive = emulator.attach(folder / "emulator") is not None
    if (folder / "sandbox.json").exists() and alive:
        raise InvalidInput(f"a sandbox runs in {folder} already; `planaria sandbox down` ends it")
    if alive:
        raise InvalidInput(f"a sandbox is being started in {folder}; wait for it, or `planaria sandbox down`")
    if is_sandbox(folder):
        raise InvalidInput(f"a dead sandbox lies in {folder}; `planaria sandbox down` clears it away")
    if any(folder.iterdir()):
        raise InvalidInput(f"{folder} is not empty; choose a new folder with --dir")


def is_sandbox(folder: Path) -> bool:
    """A sandbox is or was here, so that the folder may be removed."""
    marks = ("sandbox.json", "head.config.json", "emulator/emulator.json", "emulator/emulator.log")
    return any((folder / mark).exists() for mark in marks)


def end(folder: Path) -> bool:
    """End every process of the sandbox in this folder and remove it; False when there is none."""
    import shutil

    from planaria.sandbox import emulator
    from planaria.sandbox.job_folder import read_json
    from planaria.sandbox.world import end_head

    if not is_sandbox(folder):
        return False
    head = read_json(folder / "head.json") or (read_json(folder / "sandbox.json") or {}).get("head") or {}
    pid = head.get("pid")
    if isinstance(pid, int) and _is_head(pid):
        end_head(pid)
    running = emulator.attach(folder / "emulator")
    if running is not None:
        running.stop()
    shutil.rmtree(folder)
    return True


def _is_head(pid: int) -> bool:
    """A pid in a file may have been given to another program since."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"planaria.sandbox.head" in words


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
    except (InvalidInput, PlanariaError) as error:
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
    shown.print(Text(f"AWS emulator {emulator['url']} (pid {emulator['pid']}), head pid {document['pid']}", "dim"))
    rows = []
    for name, node in sorted(document.get("scheduler", {}).items()):
        process = document.get("nodes", {}).get(node["node_id"], {})
        isolated = (node.get("isolated") or {}).get("reason")
        rows.append(
            (name, node["node_id"], process.get("stage"), node["state"], " ".join(node["jobs"]), isolated)
        )
    shown.print(screen.table(("NODE", "ID", "PROCESS", "SCHEDULER", "JOBS", "ISOLATED BY"), rows))
    jobs = [
        (job_id, job["state"], job["attempt"], job["step"], f"{job['loss']:.3f}" if job["loss"] else None)
        for job_id, job in sorted(document.get("jobs", {}).items())
    ]
    if jobs:
        shown.print(screen.table(("JOB", "STATE", "ATTEMPT", "STEP", "LOSS"), jobs))
    else:
        shown.print(Text("No job runs."))
