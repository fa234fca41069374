"""A sandbox for the campaign: wrapped Lambdas, marked machines, ranks without PyTorch, and microburst."""

import concurrent.futures
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from botocore.config import Config

from planaria.sandbox import ports, processes
from planaria.sandbox.world import World, WorldConfig
from tests.e2e import fault_cases

HERE = Path(__file__).parent
RANKS = (sys.executable, str(HERE / "ranks.py"))
SCALE = 0.1
BOOT_SECONDS = 1.5
POLL_SECONDS = 0.3
TASK_SECONDS = 10
"""TimeoutSeconds of every Task: a cold start on a busy machine takes less, and it can be waited for."""

WARM_SECONDS = 1.0
SINGLE = ("triage", "sweep")
FOLDER = "faults"
PROXY_SECONDS = 30.0


class CampaignWorld(World):
    """faults: the folder that the hook reads. proxy: microburst's URL; what it refuses depends on the app id
    in the user agent, `campaign-<n>` for the nth try of a throttled call. submitting: held from idle nodes to
    a placed job."""

    def __init__(self, folder: Path, cluster: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True)
        file = folder / "cluster.json"  # JSON is YAML
        file.write_text(json.dumps(cluster))
        config = WorldConfig(
            folder / "w", file, time_scale=SCALE, boot_seconds=BOOT_SECONDS, auth=True, direct=True,
            rank_command=RANKS, poll_seconds=POLL_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self.faults = self.folder / FOLDER
        self.proxy = ""
        self.submitting = threading.Lock()
        self._functions: list[str] = []
        self._microburst: subprocess.Popen[bytes] | None = None

    def synthesized(self, assembly: Path) -> None:
        for name in ("plans", "met"):
            (self.faults / name).mkdir(parents=True)
        self._functions = instrument(assembly, self.faults)
        self._start_proxy()

    def _launch_nodes(self) -> None:
        """Each place launches its own; the group's size is only there for the breaker's share of it."""

    def down(self) -> None:
        if self._microburst is not None:
            processes.end_group(self._microburst.pid)
            self._microburst.wait()
            self._microburst = None
        super().down()

    def _start_proxy(self) -> None:
        assert self.emulator is not None
        port = ports.free_port()
        rules = self.folder / "microburst.json"
        rules.write_text(json.dumps({"upstream": self.emulator.url, "port": port, "rules": refusals()}))
        with (self.folder / "microburst.log").open("wb") as log:
            self._microburst = subprocess.Popen(
                [str(Path(sys.executable).with_name("microburst")), "--config", str(rules), "--no-resign"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.proxy = f"http://{ports.LOOPBACK}:{port}"
        deadline = time.monotonic() + PROXY_SECONDS
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.proxy}/_microburst/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"microburst does not answer: {(self.folder / 'microburst.log').read_text()}")

    def warm(self, workers: int = 3) -> None:
        """Start so many workers of every Task's function, two functions at a time: eight places that all need
        cold ones at once would time out, and need more of them for that."""
        assert self.emulator is not None
        client = self.emulator.client("lambda", config=Config(read_timeout=60, max_pool_connections=8))
        payload = json.dumps({"_warm": WARM_SECONDS})

        def call(name: str) -> None:
            client.invoke(FunctionName=f"planaria-{self.file.name}-{name}", Payload=payload)

        with concurrent.futures.ThreadPoolExecutor(2 * workers) as pool:
            names = [n for n in self._functions for _ in range(2 if n in SINGLE else workers)]
            list(pool.map(call, names))

    def fired(self) -> list[dict[str, Any]]:
        """What microburst refused so far."""
        with urllib.request.urlopen(f"{self.proxy}/_microburst/fired?limit=100000", timeout=5) as answer:
            return list(json.loads(answer.read()))


def refusals() -> list[dict[str, Any]]:
    """Try 1: throttled, by each service's own code. Try 2: 500. Try 3: every second call is throttled."""
    found: list[dict[str, Any]] = []
    for number, more in ((1, {}), (2, {}), (3, {"sequence": {"fail": 1, "pass": 1}})):
        match = {"headers": {"User-Agent": f"app/campaign-{number}"}}
        if number == 2:
            found.append({**match, "error": {"code": "InternalError", "status": 500}})
            continue
        ec2 = {"code": "RequestLimitExceeded", "status": 503}
        found.append({**match, **more, "service": "ec2", "error": ec2})
        found.append({**match, **more, "error": {"code": "ThrottlingException", "status": 400}})
    return found


def instrument(assembly: Path, faults: Path) -> list[str]:
    """Wrap the handlers and mark the machines of a cloud assembly, in place. -> the wrapped functions."""
    wrapped: list[str] = []
    for path in sorted(assembly.glob("*.template.json")):
        template = json.loads(path.read_text())
        for resource in template["Resources"].values():
            properties = resource.get("Properties", {})
            if resource["Type"] == "AWS::Lambda::Function":
                wrapped += _wrap(properties, faults)
            elif resource["Type"] == "AWS::StepFunctions::StateMachine":
                _mark(properties)
        path.write_text(json.dumps(template))
    assert wrapped, "no function was found in the assembly"
    assets = [path.parent.parent for path in assembly.glob("asset.*/lambdas/boundary.py")]
    assert len(assets) == 1, assets
    shutil.copyfile(HERE / "fault_hook.py", assets[0] / "fault_hook.py")
    return wrapped


def _wrap(function: dict[str, Any], faults: Path) -> list[str]:
    package, _, name = str(function.get("Handler", "")).partition(".")
    if package != "lambdas":
        return []
    function["Handler"] = f"fault_hook.{name.removesuffix('.handler')}"
    function["Environment"]["Variables"]["PLANARIA_FAULTS"] = str(faults)
    return [name.removesuffix(".handler")]


def _mark(machine: dict[str, Any]) -> None:
    """Every Task says in its payload which state it is, and has the campaign's time-out."""
    text = machine["DefinitionString"]
    assert isinstance(text, str), "the definition is no plain text any more"
    definition = json.loads(text)
    name = str(machine["StateMachineName"]).rpartition("-")[2]
    assert name in fault_cases.MACHINES, name
    for state_name, state in fault_cases.task_states(definition):
        state["Arguments"]["Payload"]["_campaign"] = {"machine": name, "state": state_name}
        state["TimeoutSeconds"] = TASK_SECONDS
    machine["DefinitionString"] = json.dumps(definition)
