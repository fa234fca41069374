"""recipes/eks: RBAC allows exactly what the adapter calls; the agent stays on our nodes and may little."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.eks_access import GROUP
from planaria.core.scheduling import (
    Hold,
    Isolate,
    JobQuery,
    JobsOn,
    Join,
    Lost,
    NodeQuery,
    Place,
    Readmit,
    Requeue,
    Stop,
)
from planaria.node.agent import AgentConfig
from planaria.schedulers.eks import names
from planaria.schedulers.eks.kinds import KINDS
from planaria.schedulers.eks.stopping import BUDGET_SECONDS, CONTROLLER_SECONDS
from tests.kubernetes.api_server import Call
from tests.kubernetes.cluster import NAMESPACE, OTHER, Cluster, instance_of, template

ROOT = Path(__file__).resolve().parents[2]
MARK = "planaria:s-1"
Rule = tuple[str, str, str]
"""(API group, resource or resource/subresource, verb)"""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "recipes" / "eks" / name).read_text()))


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [document for document in documents(name) if document["kind"] == kind]


def roles() -> dict[str, set[Rule]]:
    found = {}
    for role in of_kind("rbac.yaml", "ClusterRole"):
        assert all("*" not in str(rule) for rule in role["rules"])
        found[role["metadata"]["name"]] = {
            (group, resource, verb)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
    return found


def allowed(call: Call, namespaces: tuple[str, ...]) -> bool:
    """As Kubernetes decides it: the cluster's role for all, the other in namespaces that have the binding."""
    rule = _rule(call)
    given = roles()
    return rule in given["planaria-nodes"] or (
        call.namespace in namespaces and rule in given["planaria-jobs"]
    )


def _rule(call: Call) -> Rule:
    return call.group, f"{call.resource}/{call.subresource}".rstrip("/"), call.verb


def everything(k8s: Cluster) -> None:
    """Every request, along every way that it can go."""
    for kind in ("pytorchjobs", "hyperpodpytorchjobs", "trainjobs"):
        spec = {
            "pytorchReplicaSpecs": {"Master": {"template": template("op"), "replicas": 0}},
            "replicaSpecs": [{"name": "pods", "replicas": 0, "template": template("op")}],
        }
        k8s.store.create(kind, {"metadata": {"name": "op", "namespace": NAMESPACE}, "spec": spec})
        word = {"pytorchjobs": "pytorchjob", "trainjobs": "trainjob"}.get(kind, "hyperpodpytorchjob")
        k8s.ask(Stop((f"{word}.{NAMESPACE}.op",), "TERM", 1.0))
    k8s.add_jobset("llama", 1)
    k8s.ask(Stop((f"jobset.{NAMESPACE}.llama",), "TERM", 1.0))
    k8s.advance(1.0)
    k8s.add_job("gpt", 2)
    k8s.add_budget("never", "gpt", maxUnavailable=0)
    k8s.ask(JobQuery(("gpt",), ("demo-1",)))
    k8s.ask(JobsOn(("demo-1",)))
    k8s.ask(NodeQuery(("demo-1", instance_of(2))))
    k8s.ask(Isolate(("demo-1",), MARK))
    k8s.ask(Hold("gpt", ("demo-1", "demo-2"), 600.0))
    k8s.controllers.asleep.add("jobs")
    for seconds in (0.0, BUDGET_SECONDS, CONTROLLER_SECONDS, BUDGET_SECONDS):
        k8s.advance(seconds)
        k8s.ask(Stop(("gpt",), "TERM", 1.0))
    k8s.controllers.asleep.clear()
    k8s.advance(60.0)
    k8s.add_node("ip-10-0-9-9", instance_of(9))
    k8s.ask(Join("demo-1", instance_of(9), "", MARK))
    k8s.ask(Readmit(("demo-1",), MARK))
    k8s.ask(Place("gpt", 2))
    k8s.controllers.pulling = True
    k8s.ask(Hold("gpt", ("demo-1", "demo-2", "demo-3"), 600.0))
    meddled: list[Call] = []

    def meddle(call: Call) -> None:
        k8s.controllers.tick()
        if call.resource == "pods" and call.verb == "patch" and not meddled:
            meddled.append(call)
            k8s.store.mark("annotations", "pods", call.namespace, call.name, {"other": "write"})

    k8s.api.before = meddle
    k8s.ask(Requeue("gpt", ("demo-1", "demo-2"), 2, 5))
    k8s.controllers.pulling = False
    k8s.ask(Requeue("gpt", ("demo-1", "demo-2"), 2, 5))
    k8s.ask(Lost(("demo-1", "demo-2", "demo-3"), MARK))
    k8s.ask(Hold("gpt", (), 0.0))
    k8s.add_node("ip-10-0-8-8", instance_of(8))
    k8s.ask(Join("demo-8", instance_of(8), "", MARK))


def test_the_adapter_calls_exactly_what_rbac_allows(k8s: Cluster) -> None:
    refused: list[Call] = []

    def authorize(call: Call) -> bool:
        if not allowed(call, (NAMESPACE, OTHER)):
            refused.append(call)
        return True

    k8s.api.authorize = authorize
    everything(k8s)
    assert refused == []
    used = {_rule(call) for call in k8s.api.calls}
    given = set().union(*roles().values())
    assert given - used == set(), "a verb that nobody uses is one too many"
    assert used == given


def test_no_call_leaves_the_namespaces_of_the_cluster_file(k8s: Cluster) -> None:
    everything(k8s)
    assert {call.namespace for call in k8s.api.calls} == {"", NAMESPACE, OTHER}
    assert {call.resource for call in k8s.api.calls if call.namespace == ""} == {"nodes"}


def test_every_kind_of_the_table_may_be_acted_on() -> None:
    given = roles()["planaria-jobs"]
    for kind in KINDS:
        group = kind.api.partition("/")[0]
        for verb in ("get", "list", "patch"):
            assert (group, kind.plural, verb) in given


def test_the_bindings_are_for_the_group_of_the_access_entries() -> None:
    bindings = of_kind("rbac.yaml", "ClusterRoleBinding") + of_kind("rbac.yaml", "RoleBinding")
    assert sorted(b["roleRef"]["name"] for b in bindings) == ["planaria-jobs", "planaria-nodes"]
    for binding in bindings:
        assert binding["subjects"] == [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": GROUP}
        ]
    (cluster_wide,) = of_kind("rbac.yaml", "ClusterRoleBinding")
    assert cluster_wide["roleRef"]["name"] == "planaria-nodes", "jobs only in namespaces"


# --- the agent -------------------------------------------------------------------------------------


@pytest.fixture
def pod() -> dict[str, Any]:
    (daemon_set,) = of_kind("agent.yaml", "DaemonSet")
    selector = daemon_set["spec"]["selector"]["matchLabels"]
    template = daemon_set["spec"]["template"]
    assert template["metadata"]["labels"] == selector
    return dict(template["spec"])


def test_the_agent_tolerates_what_we_put_on_a_node(pod: dict[str, Any]) -> None:
    tolerated = {(each["key"], each["effect"]) for each in pod["tolerations"]}
    assert {
        (names.ISOLATED, "NoSchedule"),
        (names.HELD, "NoSchedule"),
        (names.JOINING, "NoSchedule"),
        (names.OUT_OF_SERVICE, "NoExecute"),
    } <= tolerated
    assert all(each.get("operator") == "Exists" and each.get("key") for each in pod["tolerations"])


def test_the_agent_may_little(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostPID", "hostIPC"} & set(pod)
    for container in pod["initContainers"] + pod["containers"]:
        limits = container["securityContext"]
        assert limits["allowPrivilegeEscalation"] is False
        assert limits["readOnlyRootFilesystem"] is True
        assert limits["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in limits
    host = [volume for volume in pod["volumes"] if "hostPath" in volume]
    assert [volume["hostPath"]["path"] for volume in host] == ["/var/log/planaria"]
    for container in pod["containers"]:
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounts[host[0]["name"]]["readOnly"] is True


class _Metadata(http.server.BaseHTTPRequestHandler):
    """An instance's metadata service (version 2), and STS."""

    items = {  # noqa: RUF012
        "/latest/meta-data/instance-id": "i-0123456789abcdef0",
        "/latest/meta-data/local-ipv4": "10.0.0.7",
        "/latest/meta-data/tags/instance/planaria:name": "demo-7",
    }

    def do_PUT(self) -> None:
        self._say("token" if self.path == "/latest/api/token" else None)

    def do_GET(self) -> None:
        asked = self.headers.get("X-aws-ec2-metadata-token") == "token"
        self._say(self.items.get(self.path) if asked else None)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(
            '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
            "<GetCallerIdentityResult><UserId>AROAROLE:i-0123456789abcdef0</UserId>"
            "<Account>1</Account><Arn>a</Arn></GetCallerIdentityResult></GetCallerIdentityResponse>"
        )

    def _say(self, text: str | None) -> None:
        body = (text or "").encode()
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Metadata)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_agents_configuration_comes_from_the_instance(metadata: str, tmp_path: Path) -> None:
    """The script in the ConfigMap, run as the init container runs it; the agent reads what it wrote."""
    (made,) = of_kind("agent.yaml", "ConfigMap")
    script = tmp_path / "configure.py"
    script.write_text(made["data"]["configure.py"])
    environment = {
        "PLANARIA_METADATA": metadata,
        "PLANARIA_STATE": str(tmp_path),
        "PLANARIA_BUS": "planaria-demo",
        "PLANARIA_KERNEL_LOG": "/var/log/planaria/kernel.log",
        "AWS_ENDPOINT_URL_STS": metadata,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    ran = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    config = AgentConfig.read(tmp_path / "config.json")
    assert (config.instance_id, config.name, config.address) == ("i-0123456789abcdef0", "demo-7", "10.0.0.7")
    assert config.source == "planaria.node/AROAROLE:i-0123456789abcdef0"
    assert config.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert json.loads((tmp_path / "config.json").read_text())["kernel_log"] == "/var/log/planaria/kernel.log"


def test_the_containers_run_what_is_there(pod: dict[str, Any]) -> None:
    (agent,) = pod["containers"]
    assert agent["command"][:3] == ["python", "-m", "planaria.node.agent"]
    state = {each["name"]: each["value"] for each in agent["env"]}["PLANARIA_STATE"]
    assert agent["command"][3:] == ["--config", f"{state}/config.json"]
    assert state in [mount["mountPath"] for mount in agent["volumeMounts"]]
