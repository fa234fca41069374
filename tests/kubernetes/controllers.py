"""The rest of a cluster, a step at a time: Job and JobSet controllers, kube-scheduler, kubelets, budgets,
taint eviction and pod garbage collection, as far as they decide what the adapter meets. Their rules are those
of kube-controller-manager 1.31; the pods hold a whole node each, as training pods do.
"""

import itertools
import re
from typing import Any

from tests.kubernetes.selectors import set_matches
from tests.kubernetes.store import ApiError, Document, Store, seconds, stamp

FINALIZER = "batch.kubernetes.io/job-tracking"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class Controllers:
    """dead: Nodes whose kubelet does nothing. stubborn: pods that end only at the end of their grace. stuck:
    pods whose processes never end. asleep: controllers that do nothing ("jobs", "jobsets", "scheduler")."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.dead: set[str] = set()
        self.stubborn: set[str] = set()
        self.stuck: set[str] = set()
        self.asleep: set[str] = set()
        self.pulling = False
        """Images are being pulled: scheduled pods stay Pending."""
        self._suffix = itertools.count(1)

    def tick(self) -> None:
        with self.store.lock:
            before = -1
            for _ in range(5):
                if before == self.store.version:
                    return
                before = self.store.version
                if "jobsets" not in self.asleep:
                    self._jobsets()
                if "jobs" not in self.asleep:
                    self._jobs()
                    self._operators()
                if "scheduler" not in self.asleep:
                    self._schedule()
                self._taint_eviction()
                self._kubelets()
                self._garbage()
                self._budgets()

    # --- Jobs ------------------------------------------------------------------------------------

    def _jobs(self) -> None:
        for job in self.store.select("jobs"):
            self._job(job)

    def _job(self, job: Document) -> None:
        spec, status = job["spec"], job.get("status") or {}
        if _true(job, "Complete") or _true(job, "Failed"):
            return
        only_failed = spec.get("podReplacementPolicy") == "Failed" or "podFailurePolicy" in spec
        succeeded, failed = int(status.get("succeeded") or 0), int(status.get("failed") or 0)
        done = set(status.get("doneIndexes") or [])
        for pod in self._owned(job):
            if FINALIZER not in (pod["metadata"].get("finalizers") or []):
                continue
            phase = pod["status"]["phase"]
            deleting = pod["metadata"].get("deletionTimestamp") is not None
            if phase == "Succeeded":
                succeeded += 1
                done.add(_index(pod))
            elif phase == "Failed" or (deleting and not only_failed):
                failed += 0 if _ignored(spec, pod) else 1
            else:
                continue
            self._untrack(pod)
        self._status(job, succeeded=succeeded, failed=failed, doneIndexes=sorted(done))
        active = [pod for pod in self._owned(job) if _active(pod)]
        if failed > int(spec.get("backoffLimit", 6)):
            self._condition(job, "Failed", "BackoffLimitExceeded")
        elif succeeded >= int(spec.get("completions", spec.get("parallelism", 1))):
            self._condition(job, "Complete", "")
        elif spec.get("suspend"):
            self._condition(job, "Suspended", "JobSuspended")
        else:
            self._create_missing(job, only_failed, done)
            return
        for pod in active:
            self._untrack(pod)
            self._delete(pod)

    def _create_missing(self, job: Document, only_failed: bool, done: set[int]) -> None:
        if not (job.get("status") or {}).get("startTime"):
            self._status(job, startTime=stamp(self.store.now()))
        if _true(job, "Suspended"):
            self._condition(job, "Suspended", "JobResumed", "False")
        there = [p for p in self._owned(job) if p["status"]["phase"] not in ("Succeeded", "Failed")]
        blocking = there if only_failed else [pod for pod in there if _active(pod)]
        taken = {_index(pod) for pod in blocking}
        for index in range(int(job["spec"].get("parallelism", 1))):
            if index not in taken and index not in done:
                self._create_pod(job, index)

    def _create_pod(self, job: Document, index: int) -> None:
        template = job["spec"]["template"]
        marks = {
            "batch.kubernetes.io/job-name": job["metadata"]["name"],
            "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
            **((template.get("metadata") or {}).get("labels") or {}),
        }
        notes = {}
        if job["spec"].get("completionMode") == "Indexed":
            marks["batch.kubernetes.io/job-completion-index"] = str(index)
            notes["batch.kubernetes.io/job-completion-index"] = str(index)
        self.store.create(
            "pods",
            {
                "metadata": {
                    "name": f"{job['metadata']['name']}-{index}-{next(self._suffix):05d}",
                    "namespace": job["metadata"]["namespace"],
                    "labels": marks,
                    "annotations": notes,
                    "finalizers": [FINALIZER],
                    "ownerReferences": [_owner(job)],
                },
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            },
            "job-controller",
        )

    def _untrack(self, pod: Document) -> None:
        pod = self.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        pod["metadata"].pop("finalizers", None)
        self.store.update("pods", pod["metadata"]["namespace"], pod, "job-controller")

    # --- JobSets and the operators' kinds ----------------------------------------------------------

    def _jobsets(self) -> None:
        if "jobsets" not in self.store.installed:
            return
        for jobset in self.store.select("jobsets"):
            if not _true(jobset, "Completed") and not _true(jobset, "Failed"):
                self._jobset(jobset)

    def _jobset(self, jobset: Document) -> None:
        name, namespace = jobset["metadata"]["name"], jobset["metadata"]["namespace"]
        suspend = bool(jobset["spec"].get("suspend"))
        children = {job["metadata"]["name"]: job for job in self._owned(jobset, "jobs")}
        restarts = int((jobset.get("status") or {}).get("restarts") or 0)
        if any(_true(job, "Failed") for job in children.values()):
            if restarts >= int((jobset["spec"].get("failurePolicy") or {}).get("maxRestarts", 0)):
                self._condition(jobset, "Failed", "FailedJobs", plural="jobsets")
                return
            for job in children.values():
                for pod in self._owned(job):
                    self._untrack(pod)
                    self._delete(pod)
                self.store.delete("jobs", namespace, job["metadata"]["name"])
            self.store.set_status("jobsets", namespace, name, restarts=restarts + 1)
            children = {}
        number = 0
        for replicated in jobset["spec"]["replicatedJobs"]:
            for index in range(int(replicated.get("replicas", 1))):
                child = f"{name}-{replicated['name']}-{index}"
                marks = {
                    "jobset.sigs.k8s.io/jobset-name": name,
                    "jobset.sigs.k8s.io/job-global-index": str(number),
                }
                number += 1
                if child not in children:
                    spec = _with_labels(replicated["template"]["spec"], marks)
                    self.store.create(
                        "jobs",
                        {
                            "metadata": {
                                "name": child,
                                "namespace": namespace,
                                "labels": marks,
                                "ownerReferences": [_owner(jobset)],
                            },
                            "spec": {**spec, "suspend": suspend},
                        },
                        "jobset-controller",
                    )
                elif bool(children[child]["spec"].get("suspend")) != suspend:
                    self.store.change("jobs", namespace, child, "jobset-controller", suspend=suspend)
        if children and all(_true(job, "Complete") for job in children.values()):
            self._condition(jobset, "Completed", "AllJobsCompleted", plural="jobsets")

    def _operators(self) -> None:
        """PyTorchJob and HyperPodPyTorchJob: pods straight from the object, none while it is suspended."""
        for plural in ("pytorchjobs", "hyperpodpytorchjobs"):
            if plural not in self.store.installed:
                continue
            for job in self.store.select(plural):
                suspend = bool((job["spec"].get("runPolicy") or {}).get("suspend"))
                there = self._owned(job)
                if suspend:
                    for pod in there:
                        if _active(pod):
                            self._delete(pod)
                elif not there:
                    self._operator_pods(plural, job)

    def _operator_pods(self, plural: str, job: Document) -> None:
        spec = job["spec"]
        groups = (
            spec["pytorchReplicaSpecs"].items()
            if plural == "pytorchjobs"
            else [(each["name"], each) for each in spec["replicaSpecs"]]
        )
        for kind, replica in groups:
            for index in range(int(replica.get("replicas", 1))):
                marks = {
                    "training.kubeflow.org/job-name": job["metadata"]["name"],
                    "training.kubeflow.org/replica-type": kind.lower(),
                    "training.kubeflow.org/replica-index": str(index),
                    **replica["template"]["metadata"]["labels"],
                }
                self.store.create(
                    "pods",
                    {
                        "metadata": {
                            "name": f"{job['metadata']['name']}-{kind.lower()}-{index}-{next(self._suffix)}",
                            "namespace": job["metadata"]["namespace"],
                            "labels": marks,
                            "ownerReferences": [_owner(job)],
                        },
                        "spec": replica["template"]["spec"],
                        "status": {"phase": "Pending"},
                    },
                    "operator",
                )

    # --- nodes -----------------------------------------------------------------------------------

    def _schedule(self) -> None:
        every = self.store.select("pods")
        taken = {
            p["spec"]["nodeName"]
            for p in every
            if p["spec"].get("nodeName") and p["status"]["phase"] in ("Pending", "Running")
        }
        nodes = sorted(self.store.select("nodes"), key=lambda node: _natural(node["metadata"]["name"]))
        waiting = [p for p in every if not p["spec"].get("nodeName") and _active(p)]
        for pod in sorted(waiting, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"])):
            for node in nodes:
                name = node["metadata"]["name"]
                if name not in taken and _ready(node) == "True" and _fits(pod, node):
                    pod = self.store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
                    pod["spec"]["nodeName"] = name
                    self.store.update("pods", pod["metadata"]["namespace"], pod, "kube-scheduler")
                    taken.add(name)
                    break

    def _kubelets(self) -> None:
        alive = {
            n["metadata"]["name"]
            for n in self.store.select("nodes")
            if _ready(n) == "True" and n["metadata"]["name"] not in self.dead
        }
        for pod in self.store.select("pods"):
            metadata, namespace = pod["metadata"], pod["metadata"]["namespace"]
            if pod["spec"].get("nodeName") not in alive:
                continue
            until = metadata.get("deletionTimestamp")
            if until is None:
                if pod["status"]["phase"] == "Pending" and not self.pulling:
                    self.store.set_status("pods", namespace, metadata["name"], phase="Running")
            elif metadata["name"] not in self.stuck:
                ended = seconds(until) <= self.store.now()
                if metadata["name"] not in self.stubborn or ended:
                    self.store.kubelet_done(namespace, metadata["name"])

    def _taint_eviction(self) -> None:
        """Pods that do not tolerate the taint of a node that is out of service are deleted."""
        nodes = {node["metadata"]["name"]: node for node in self.store.select("nodes")}
        for pod in self.store.select("pods"):
            node = nodes.get(pod["spec"].get("nodeName", ""))
            if node is not None and _has_taint(node, OUT_OF_SERVICE) and _active(pod):
                self._disrupted(pod, "DeletionByTaintManager")
                self._delete(pod)

    def _garbage(self) -> None:
        """PodGC: orphans, and Terminating pods of nodes that are out of service and not ready."""
        nodes = {node["metadata"]["name"]: node for node in self.store.select("nodes")}
        for pod in self.store.select("pods"):
            on = pod["spec"].get("nodeName")
            node = nodes.get(on or "")
            orphan = bool(on) and node is None
            fenced = (
                node is not None
                and pod["metadata"].get("deletionTimestamp") is not None
                and _ready(node) != "True"
                and _has_taint(node, OUT_OF_SERVICE)
            )
            if orphan or fenced:
                self._disrupted(pod, "DeletionByPodGC")
                self.store.kubelet_done(pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _budgets(self) -> None:
        for budget in self.store.select("poddisruptionbudgets"):
            spec, metadata = budget["spec"], budget["metadata"]
            matched = [
                pod
                for pod in self.store.select("pods", metadata["namespace"])
                if set_matches(spec.get("selector"), pod["metadata"].get("labels") or {})
                and pod["status"]["phase"] not in ("Succeeded", "Failed")
            ]
            healthy = sum(1 for pod in matched if pod["status"]["phase"] == "Running" and _active(pod))
            if "minAvailable" in spec:
                spare = healthy - _number(spec["minAvailable"], len(matched))
            else:
                spare = healthy - (len(matched) - _number(spec["maxUnavailable"], len(matched)))
            self.store.set_status(
                "poddisruptionbudgets",
                metadata["namespace"],
                metadata["name"],
                disruptionsAllowed=max(0, spare),
            )

    # --- parts -----------------------------------------------------------------------------------

    def _owned(self, owner: Document, plural: str = "pods") -> list[Document]:
        uid = owner["metadata"]["uid"]
        return [
            each
            for each in self.store.select(plural, owner["metadata"]["namespace"])
            if any(ref["uid"] == uid for ref in each["metadata"].get("ownerReferences") or [])
        ]

    def _disrupted(self, pod: Document, reason: str) -> None:
        conditions = list(pod["status"].get("conditions") or [])
        if not any(each["type"] == "DisruptionTarget" for each in conditions):
            conditions.append({"type": "DisruptionTarget", "status": "True", "reason": reason})
            metadata = pod["metadata"]
            self.store.set_status("pods", metadata["namespace"], metadata["name"], conditions=conditions)

    def _delete(self, pod: Document) -> None:
        try:
            self.store.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        except ApiError as error:
            if error.code != 404:
                raise

    def _status(self, job: Document, **status: Any) -> None:
        metadata = job["metadata"]
        self.store.set_status("jobs", metadata["namespace"], metadata["name"], **status)

    def _condition(
        self, job: Document, kind: str, reason: str, status: str = "True", plural: str = "jobs"
    ) -> None:
        metadata = job["metadata"]
        job = self.store.get(plural, metadata["namespace"], metadata["name"])
        before = (job.get("status") or {}).get("conditions") or []
        if any(each["type"] == kind and each["status"] == status for each in before):
            return
        conditions = [each for each in before if each["type"] != kind]
        at = stamp(self.store.now())
        conditions.append({"type": kind, "status": status, "reason": reason, "lastTransitionTime": at})
        self.store.set_status(plural, metadata["namespace"], metadata["name"], conditions=conditions)


def _owner(document: Document) -> Document:
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": document["metadata"]["name"],
        "uid": document["metadata"]["uid"],
        "controller": True,
    }


def _with_labels(spec: Document, marks: dict[str, str]) -> Document:
    template = spec["template"]
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), **marks}
    return {**spec, "template": {**template, "metadata": {**metadata, "labels": labels}}}


def _active(pod: Document) -> bool:
    return (
        pod["metadata"].get("deletionTimestamp") is None
        and pod["status"]["phase"] not in ("Succeeded", "Failed")
    )  # fmt: skip


def _true(document: Document, kind: str) -> bool:
    listed = (document.get("status") or {}).get("conditions") or []
    return any(each["type"] == kind and each["status"] == "True" for each in listed)


def _ready(node: Document) -> str:
    for each in (node.get("status") or {}).get("conditions") or []:
        if each["type"] == "Ready":
            return str(each["status"])
    return "Unknown"


def _has_taint(node: Document, key: str) -> bool:
    return any(taint["key"] == key for taint in (node.get("spec") or {}).get("taints") or [])


def _fits(pod: Document, node: Document) -> bool:
    spec = node.get("spec") or {}
    tolerations = pod["spec"].get("tolerations") or []
    blocking = [taint for taint in spec.get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
    if spec.get("unschedulable"):
        blocking.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    wanted = pod["spec"].get("nodeSelector") or {}
    labels = node["metadata"].get("labels") or {}
    return all(any(_tolerates(each, taint) for each in tolerations) for taint in blocking) and all(
        labels.get(key) == value for key, value in wanted.items()
    )


def _tolerates(toleration: Document, taint: Document) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")


def _ignored(spec: Document, pod: Document) -> bool:
    disrupted = any(each["type"] == "DisruptionTarget" for each in pod["status"].get("conditions") or [])
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
    return disrupted and any(
        rule["action"] == "Ignore" and any(c["type"] == "DisruptionTarget" for c in rule["onPodConditions"])
        for rule in rules
    )


def _index(pod: Document) -> int:
    return int(pod["metadata"]["name"].split("-")[-2])


def _number(value: int | str, of: int) -> int:
    if isinstance(value, str):
        return -(-of * int(value.rstrip("%")) // 100)
    return value


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
