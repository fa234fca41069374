"""The test server itself: it has to refuse what a real API server refuses."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.api_server import TOKEN
from tests.kubernetes.cluster import NAMESPACE, Cluster, cluster, key_of, template

A, B = key_of(1), key_of(2)
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture
def k8s() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


def call(
    k8s: Cluster, method: str, path: str, body: Any = None, kind: str = "application/json", token: str = TOKEN
) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        k8s.api.url + path,
        data=data,
        method=method,
        headers={"Authorization": f"Bearer {token}", "Content-Type": kind},
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def items(k8s: Cluster, path: str) -> list[str]:
    return [item["metadata"]["name"] for item in call(k8s, "GET", path)[1]["items"]]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("planaria/name%3Ddemo-2", [B]),
        ("planaria/name%20in%20(demo-1,demo-2)", [A, B]),
        ("planaria/name%20notin%20(demo-1,demo-2)", [key_of(3)]),
        ("planaria/name!%3Ddemo-1,planaria/name", [B, key_of(3)]),
        ("!planaria/name", []),
        ("other", []),
    ],
)
def test_label_selectors(k8s: Cluster, selector: str, found: list[str]) -> None:
    assert items(k8s, f"/api/v1/nodes?labelSelector={selector}") == found


def test_field_selectors_and_what_they_may_name(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    assert len(items(k8s, path)) == 2
    assert len(items(k8s, f"{path}?fieldSelector=spec.nodeName%3D{A}")) == 1
    assert items(k8s, f"{path}?fieldSelector=status.phase%3DFailed") == []
    assert call(k8s, "GET", f"{path}?fieldSelector=spec.providerID%3Dx")[0] == 400
    assert call(k8s, "GET", "/api/v1/nodes?fieldSelector=spec.providerID%3Dx")[0] == 400
    assert call(k8s, "GET", "/api/v1/nodes?labelSelector=a%20in")[0] == 400


def test_a_stale_resource_version_is_a_conflict(k8s: Cluster) -> None:
    version = k8s.node(A)["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"unschedulable": True}}
    status, after = call(k8s, "PATCH", f"/api/v1/nodes/{A}", patch, MERGE)
    assert (status, after["spec"]["unschedulable"]) == (200, True)
    assert after["metadata"]["resourceVersion"] != version
    assert call(k8s, "PATCH", f"/api/v1/nodes/{A}", patch, MERGE)[0] == 409
    del patch["metadata"]
    assert call(k8s, "PATCH", f"/api/v1/nodes/{A}", patch, MERGE)[0] == 200, "without one nothing is compared"
    assert call(k8s, "GET", f"/api/v1/nodes/{A}")[1]["metadata"]["managedFields"][0]["manager"]


def test_taints_are_one_list_in_every_kind_of_patch(k8s: Cluster) -> None:
    one = {"key": "a", "value": "", "effect": "NoSchedule"}
    two = {"key": "b", "value": "", "effect": "NoSchedule"}
    for kind in (MERGE, STRATEGIC):
        assert call(k8s, "PATCH", f"/api/v1/nodes/{A}", {"spec": {"taints": [one]}}, kind)[0] == 200
        after = call(k8s, "PATCH", f"/api/v1/nodes/{A}", {"spec": {"taints": [two]}}, kind)[1]
        assert after["spec"]["taints"] == [two]
    add = [{"op": "add", "path": "/spec/taints/-", "value": one}]
    assert call(k8s, "PATCH", f"/api/v1/nodes/{A}", add, JSON)[1]["spec"]["taints"] == [two, one]
    assert call(k8s, "PATCH", f"/api/v1/nodes/{A}", add, JSON)[0] == 422, "twice the same key and effect"
    wrong = [{"op": "test", "path": "/spec/taints/0/key", "value": "z"}]
    assert call(k8s, "PATCH", f"/api/v1/nodes/{A}", wrong, JSON)[0] == 422


def test_patches_of_the_wrong_type_and_values_that_are_not_allowed(k8s: Cluster) -> None:
    k8s.add_jobset("set", 1)
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets/set"
    assert call(k8s, "PATCH", path, {"spec": {"suspend": True}}, STRATEGIC)[0] == 415
    assert call(k8s, "PATCH", path, {"spec": {"suspend": True}}, "application/json")[0] == 415
    assert call(k8s, "PATCH", path, {"spec": {"suspend": True}}, MERGE)[0] == 200
    node = f"/api/v1/nodes/{A}"
    for bad in (
        {"spec": {"taints": [{"key": "a", "value": "x:y", "effect": "NoSchedule"}]}},
        {"spec": {"taints": [{"key": "a", "effect": "Never"}]}},
        {"spec": {"providerID": "aws:///us-east-1a/i-other"}},
        {"metadata": {"labels": {"planaria/name": "a b"}}},
        {"metadata": {"labels": {"planaria/name": "x" * 64}}},
        {"metadata": {"uid": "other"}},
    ):
        assert call(k8s, "PATCH", node, bad, MERGE)[0] == 422, bad


def test_the_template_of_a_started_job_is_immutable(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/gpt"
    pinned = {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}
    assert call(k8s, "PATCH", path, pinned, MERGE)[0] == 422
    assert call(k8s, "PATCH", path, {"spec": {"suspend": True}}, MERGE)[0] == 200
    assert call(k8s, "PATCH", path, pinned, MERGE)[0] == 422, "it has started once"
    k8s.add_job("new", 1, suspend=True)
    assert call(k8s, "PATCH", path.replace("gpt", "new"), pinned, MERGE)[0] == 200
    image = {"spec": {"template": {"spec": {"containers": [{"name": "train", "image": "other"}]}}}}
    assert call(k8s, "PATCH", path.replace("gpt", "new"), image, MERGE)[0] == 422
    assert call(k8s, "PATCH", path, {"spec": {"completions": 9}}, MERGE)[0] == 422


def eviction(pod: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod["metadata"]["name"]},
        "deleteOptions": options,
    }


def test_evictions_obey_a_budget(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2, backoffLimit=100)
    k8s.add_budget("keep-one", "gpt", minAvailable=1)
    first, second = k8s.live("gpt")

    def evict(pod: dict[str, Any], **options: Any) -> tuple[int, dict[str, Any]]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/eviction"
        return call(k8s, "POST", path, eviction(pod, **options))

    k8s.controllers.stubborn.add(first["metadata"]["name"])
    k8s.controllers.asleep.add("scheduler")
    assert evict(first, preconditions={"uid": "other"})[0] == 409
    assert evict(first, dryRun=["All"])[0] == evict(second, dryRun=["All"])[0] == 201, "they count nothing"
    assert [pod["metadata"].get("deletionTimestamp") for pod in k8s.live("gpt")] == [None, None]
    assert evict(first)[0] == 201
    assert evict(first)[0] == 201, "a pod that is ending already is no further disruption"
    status, said = evict(second)
    assert (status, said["details"]["causes"][0]["reason"]) == (429, "DisruptionBudget")
    k8s.add_budget("second", "gpt", minAvailable=0)
    assert evict(second)[0] == 500, "two budgets of one pod are an error"


def test_a_pod_ends_gracefully_and_a_second_deletion_can_only_be_sooner(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    (pod,) = k8s.live("gpt")
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"
    k8s.controllers.stubborn.add(name)
    k8s.controllers.asleep.add("jobs")
    assert call(k8s, "DELETE", path, {"preconditions": {"uid": "other"}})[0] == 409
    graces = [
        call(k8s, "DELETE", path, options)[1]["metadata"]["deletionGracePeriodSeconds"]
        for options in ({}, {"gracePeriodSeconds": 5}, {"gracePeriodSeconds": 50})
    ]
    assert graces == [30, 5, 5]
    k8s.advance(4.0)
    assert call(k8s, "GET", path)[1]["status"]["phase"] == "Running"
    k8s.advance(2.0)
    left = call(k8s, "GET", path)[1]
    assert left["status"]["phase"] == "Failed", "its processes are gone, but a finalizer keeps the object"
    k8s.controllers.asleep.clear()
    k8s.advance(1.0)
    assert call(k8s, "GET", path)[0] == 404


def test_of_a_pod_only_tolerations_may_be_added(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1, pod={"tolerations": [{"key": "a", "operator": "Exists"}]})
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{k8s.live('gpt')[0]['metadata']['name']}"
    one, two = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
    assert call(k8s, "PATCH", path, {"spec": {"tolerations": [one, two]}}, MERGE)[0] == 200
    assert call(k8s, "PATCH", path, {"spec": {"tolerations": [two]}}, MERGE)[0] == 422
    assert call(k8s, "PATCH", path, {"spec": {"nodeSelector": {"a": "b"}}}, MERGE)[0] == 422


def test_long_lists_come_in_pages_that_may_expire(k8s: Cluster) -> None:
    page = call(k8s, "GET", "/api/v1/nodes?limit=2")[1]
    assert len(page["items"]) == 2
    more = page["metadata"]["continue"]
    assert len(call(k8s, "GET", f"/api/v1/nodes?limit=2&continue={more}")[1]["items"]) == 1
    k8s.api.expire_lists = 1
    assert call(k8s, "GET", f"/api/v1/nodes?limit=2&continue={more}")[0] == 410


def test_who_calls_is_checked(k8s: Cluster) -> None:
    assert call(k8s, "GET", "/api/v1/nodes", token="other")[0] == 401
    k8s.api.authorize = lambda request: request.verb == "list"
    assert call(k8s, "GET", "/api/v1/nodes")[0] == 200
    assert call(k8s, "GET", f"/api/v1/nodes/{A}")[0] == 403
    assert call(k8s, "GET", "/apis/none.example/v1/things")[0] == 404


def test_controllers_suspend_and_resume_a_job_without_counting_failures(k8s: Cluster) -> None:
    k8s.add_job("gpt", 2, backoffLimit=0)
    assert sorted(k8s.where("gpt")) == [A, B]
    k8s.store.change("jobs", NAMESPACE, "gpt", "kubectl", suspend=True)
    k8s.advance(1.0)
    assert k8s.live("gpt") == []
    assert k8s.job("gpt")["status"]["failed"] == 0
    k8s.store.change("jobs", NAMESPACE, "gpt", "kubectl", suspend=False)
    k8s.advance(1.0)
    assert len(k8s.live("gpt")) == 2
    k8s.store.delete("pods", NAMESPACE, k8s.live("gpt")[0]["metadata"]["name"])
    k8s.advance(1.0)
    assert k8s.job("gpt")["status"]["conditions"][-1]["type"] == "Failed", "a deleted pod counts as failed"


def test_the_scheduler_keeps_off_what_it_must(k8s: Cluster) -> None:
    k8s.store.change("nodes", "", A, "kubectl-cordon", unschedulable=True)
    held = {"key": "planaria/held", "value": "x", "effect": "NoSchedule"}
    k8s.store.change("nodes", "", B, "kubectl", taints=[held])
    k8s.set_ready(key_of(3), "Unknown")
    k8s.add_job("gpt", 1)
    assert k8s.where("gpt") == [""]
    k8s.add_job("other", 1, pod={"tolerations": [{"key": "planaria/held", "operator": "Exists"}]})
    assert k8s.where("other") == [B]


def test_a_node_out_of_service_loses_its_pods(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1, podReplacementPolicy="Failed")
    k8s.lose(A)
    (pod,) = k8s.live("gpt")
    k8s.store.delete("pods", NAMESPACE, pod["metadata"]["name"], {"gracePeriodSeconds": 0})
    k8s.advance(1.0)
    assert k8s.where("gpt") == [A], "nobody says that it has failed, so its finalizer stays"
    out = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    k8s.store.change("nodes", "", A, "kubectl", taints=[out])
    k8s.advance(1.0)
    assert k8s.where("gpt") == [B]


def test_a_jobset_starts_all_its_jobs_again(k8s: Cluster) -> None:
    k8s.add_jobset("set", 2, failurePolicy={"maxRestarts": 1})
    first = {pod["metadata"]["uid"] for pod in k8s.live("set")}
    k8s.store.set_status("pods", NAMESPACE, k8s.live("set")[0]["metadata"]["name"], phase="Failed")
    k8s.advance(1.0)
    assert len(k8s.live("set")) == 2
    assert not first & {pod["metadata"]["uid"] for pod in k8s.live("set")}
    assert k8s.job("set", "jobsets")["status"]["restarts"] == 1
    assert template("set")["spec"]["restartPolicy"] == "Never"
