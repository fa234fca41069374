"""The objects of a Kubernetes cluster and the rules of the API server about them: versions, selectors,
immutable fields, evictions, graceful deletion. Behind a lock; no HTTP here."""

import calendar
import itertools
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.selectors import BadSelector, field_matches, label_matches, set_matches

Document = dict[str, Any]
Key = tuple[str, str, str]
"""(resource, namespace, name)"""


@dataclass(frozen=True)
class Resource:
    plural: str
    api: str
    kind: str
    namespaced: bool = True
    built_in: bool = True


RESOURCES = {
    each.plural: each
    for each in (
        Resource("nodes", "v1", "Node", namespaced=False),
        Resource("pods", "v1", "Pod"),
        Resource("jobs", "batch/v1", "Job"),
        Resource("poddisruptionbudgets", "policy/v1", "PodDisruptionBudget"),
        Resource("jobsets", "jobset.x-k8s.io/v1alpha2", "JobSet", built_in=False),
        Resource("pytorchjobs", "kubeflow.org/v1", "PyTorchJob", built_in=False),
        Resource("trainjobs", "trainer.kubeflow.org/v1alpha1", "TrainJob", built_in=False),
        Resource("hyperpodpytorchjobs", "sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob", built_in=False),
    )
}


class ApiError(Exception):
    """A Status that is answered instead of the object."""

    def __init__(self, code: int, reason: str, message: str, causes: list[Document] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.causes = code, reason, causes or []


_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"({_NAME})?")


class Store:
    """now: epoch seconds. installed: the kinds that the cluster has; the others answer 404."""

    def __init__(self, now: Callable[[], float] = time.time, installed: set[str] | None = None) -> None:
        self.now = now
        self.installed = set(RESOURCES) if installed is None else installed
        self.lock = threading.RLock()
        self.objects: dict[Key, Document] = {}
        self._versions = itertools.count(1000)
        self.version = 0

    # --- reading ---------------------------------------------------------------------------------

    def resource(self, plural: str) -> Resource:
        found = RESOURCES.get(plural)
        if found is None or plural not in self.installed:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return found

    def get(self, plural: str, namespace: str, name: str) -> Document:
        self.resource(plural)
        try:
            found: Document = clone(self.objects[plural, namespace, name])
            return found
        except KeyError:
            raise ApiError(404, "NotFound", f'{plural} "{name}" not found') from None

    def select(self, plural: str, namespace: str = "", labels: str = "", fields: str = "") -> list[Document]:
        self.resource(plural)
        try:
            return [
                clone(document)
                for (kind, place, _), document in sorted(self.objects.items())
                if kind == plural
                and namespace in ("", place)
                and (not labels or label_matches(labels, document["metadata"].get("labels") or {}))
                and (not fields or field_matches(plural, fields, document))
            ]
        except BadSelector as error:
            raise ApiError(400, "BadRequest", str(error)) from None

    # --- writing ---------------------------------------------------------------------------------

    def create(self, plural: str, document: Document, manager: str = "kubectl-create") -> Document:
        resource = self.resource(plural)
        with self.lock:
            document = clone(document)
            metadata = document.setdefault("metadata", {})
            namespace = metadata.setdefault("namespace", "default") if resource.namespaced else ""
            if (plural, namespace, metadata["name"]) in self.objects:
                raise ApiError(409, "AlreadyExists", f'{plural} "{metadata["name"]}" already exists')
            metadata.update(uid=str(uuid.uuid4()), creationTimestamp=stamp(self.now()))
            document.update(apiVersion=resource.api, kind=resource.kind)
            self._valid(plural, document)
            return self._put(plural, namespace, {}, document, manager)

    def update(
        self, plural: str, namespace: str, new: Document, manager: str, status: bool = False
    ) -> Document:
        """Replace an object by a patched one; its resourceVersion, where it has one, must be the present."""
        with self.lock:
            name = new["metadata"]["name"]
            old = self.get(plural, namespace, name)
            version = new["metadata"].get("resourceVersion")
            if version is not None and version != old["metadata"]["resourceVersion"]:
                raise ApiError(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified; '
                    "please apply your changes to the latest version and try again",
                )
            for field in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
                if new["metadata"].get(field, old["metadata"].get(field)) != old["metadata"].get(field):
                    raise ApiError(422, "Invalid", f"metadata.{field}: field is immutable")
                if field in old["metadata"]:
                    new["metadata"][field] = old["metadata"][field]
            if status:
                new = {**old, "status": new.get("status", {})}
            elif RESOURCES[plural].built_in and "status" in old:
                new = {**new, "status": old["status"]}  # the main resource does not write its status
            self._valid(plural, new)
            self._immutable(plural, old, new)
            if _same(old, new):
                return old
            return self._put(plural, namespace, old, new, manager)

    def set_status(self, plural: str, namespace: str, name: str, **status: Any) -> None:
        """As a controller writes it."""
        with self.lock:
            document = self.get(plural, namespace, name)
            old = clone(document)
            document["status"] = {**(document.get("status") or {}), **status}
            if old.get("status") != document["status"]:
                self._put(plural, namespace, old, document, "controller")

    def change(self, plural: str, namespace: str, name: str, manager: str, **spec: Any) -> None:
        """As a person does with kubectl: spec fields; None removes one."""
        with self.lock:
            document = self.get(plural, namespace, name)
            merged = {**document.get("spec", {}), **spec}
            document["spec"] = {key: value for key, value in merged.items() if value is not None}
            self.update(plural, namespace, document, manager)

    def mark(self, part: str, plural: str, namespace: str, name: str, marks: dict[str, str | None]) -> None:
        """labels or annotations, as kubectl label and annotate do."""
        with self.lock:
            document = self.get(plural, namespace, name)
            new = {**(document["metadata"].get(part) or {}), **marks}
            document["metadata"][part] = {key: value for key, value in new.items() if value is not None}
            self.update(plural, namespace, document, "kubectl")

    def _put(self, plural: str, namespace: str, old: Document, new: Document, manager: str) -> Document:
        new = clone(new)
        metadata = new["metadata"]
        self.version = next(self._versions)
        metadata["resourceVersion"] = str(self.version)
        if old.get("spec") != new.get("spec"):
            metadata["generation"] = int(metadata.get("generation", 0)) + 1
        metadata["managedFields"] = _managed(old, new, manager, stamp(self.now()))
        key = (plural, namespace, metadata["name"])
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and _may_go(plural, new):
            self.objects.pop(key, None)
        else:
            self.objects[key] = new
        return clone(new)

    # --- deleting --------------------------------------------------------------------------------

    def delete(self, plural: str, namespace: str, name: str, options: Document | None = None) -> Document:
        with self.lock:
            found = self.get(plural, namespace, name)
            options = options or {}
            _preconditions(found, options, f'{plural} "{name}"')
            grace = options.get("gracePeriodSeconds")
            if plural != "pods":
                grace = 0
            elif grace is None:
                grace = int((found.get("spec") or {}).get("terminationGracePeriodSeconds", 30))
            if not (found.get("spec") or {}).get("nodeName") and plural == "pods":
                grace = 0
            metadata = found["metadata"]
            old = clone(found)
            left = metadata.get("deletionGracePeriodSeconds")
            if left is None or grace < left:  # a later deletion can only be sooner
                metadata["deletionTimestamp"] = stamp(self.now() + grace)
                metadata["deletionGracePeriodSeconds"] = grace
            return self._put(plural, namespace, old, found, "delete")

    def kubelet_done(self, namespace: str, name: str) -> None:
        """The kubelet has ended the containers of a Terminating pod and says so."""
        with self.lock:
            pod = self.get("pods", namespace, name)
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                self.set_status("pods", namespace, name, phase="Failed")
            if ("pods", namespace, name) in self.objects:
                self.delete("pods", namespace, name, {"gracePeriodSeconds": 0})

    def evict(self, namespace: str, name: str, eviction: Document) -> Document:
        """The eviction subresource: 429 while a budget has nothing to spare, 500 for a pod with two."""
        if eviction.get("apiVersion") != "policy/v1" or eviction.get("kind") != "Eviction":
            raise ApiError(400, "BadRequest", "the body is no policy/v1 Eviction")
        if (eviction.get("metadata") or {}).get("name") != name:
            raise ApiError(400, "BadRequest", "name in URL does not match name in Eviction object")
        options = eviction.get("deleteOptions") or {}
        with self.lock:
            pod = self.get("pods", namespace, name)
            _preconditions(pod, options, f'pods "{name}"')
            dry = bool(options.get("dryRun"))
            over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending")
            if not over and not pod["metadata"].get("deletionTimestamp"):
                self._within_budget(namespace, pod, dry)
            if not dry:
                conditions = list((pod.get("status") or {}).get("conditions") or [])
                conditions.append(
                    {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
                )
                self.set_status("pods", namespace, name, conditions=conditions)
                self.delete("pods", namespace, name, {k: v for k, v in options.items() if k != "dryRun"})
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _within_budget(self, namespace: str, pod: Document, dry: bool) -> None:
        labels = pod["metadata"].get("labels") or {}
        budgets = [
            each
            for each in self.select("poddisruptionbudgets", namespace)
            if set_matches(each["spec"].get("selector"), labels)
        ]
        if len(budgets) > 1:
            raise ApiError(
                500,
                "InternalError",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
                "support.",
            )
        for budget in budgets:
            name = budget["metadata"]["name"]
            allowed = int((budget.get("status") or {}).get("disruptionsAllowed") or 0)
            if allowed < 1:
                raise ApiError(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    [
                        {
                            "reason": "DisruptionBudget",
                            "message": f"The disruption budget {name} needs more healthy pods",
                        }
                    ],
                )
            if not dry:
                self.set_status("poddisruptionbudgets", namespace, name, disruptionsAllowed=allowed - 1)

    # --- rules -----------------------------------------------------------------------------------

    def _valid(self, plural: str, document: Document) -> None:
        for key, value in (document["metadata"].get("labels") or {}).items():
            if not _KEY.fullmatch(key) or not _VALUE.fullmatch(str(value)) or not isinstance(value, str):
                raise ApiError(422, "Invalid", f"metadata.labels: Invalid value: {key}={value!r}")
        for key, value in (document["metadata"].get("annotations") or {}).items():
            if not _KEY.fullmatch(key) or not isinstance(value, str):
                raise ApiError(422, "Invalid", f"metadata.annotations: Invalid value: {key}={value!r}")
        if plural == "nodes":
            seen = set()
            for taint in (document.get("spec") or {}).get("taints") or []:
                if not _KEY.fullmatch(taint["key"]) or not _VALUE.fullmatch(taint.get("value") or ""):
                    raise ApiError(422, "Invalid", f"spec.taints: Invalid value: {taint}")
                if taint["effect"] not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
                    raise ApiError(422, "Invalid", f"spec.taints: Unsupported effect: {taint}")
                if (taint["key"], taint["effect"]) in seen:
                    raise ApiError(422, "Invalid", "spec.taints: taints must be unique by key and effect")
                seen.add((taint["key"], taint["effect"]))

    def _immutable(self, plural: str, old: Document, new: Document) -> None:
        before, after = old.get("spec") or {}, new.get("spec") or {}
        if plural == "nodes" and before.get("providerID") not in (None, "", after.get("providerID")):
            raise ApiError(422, "Invalid", "spec.providerID: Forbidden: node updates may not change it")
        if plural == "jobs":
            for field in ("selector", "completionMode", "completions"):
                if before.get(field) != after.get(field):
                    raise ApiError(422, "Invalid", f"spec.{field}: Invalid value: field is immutable")
            started = bool((old.get("status") or {}).get("startTime")) or not before.get("suspend")
            ours, theirs = (_template(spec, started) for spec in (before, after))
            if ours != theirs:
                raise ApiError(422, "Invalid", "spec.template: Invalid value: field is immutable")
        if plural == "pods":
            fixed = [
                {
                    k: v
                    for k, v in spec.items()
                    if k not in ("tolerations", "activeDeadlineSeconds", "nodeName")
                }
                for spec in (before, after)
            ]
            if fixed[0] != fixed[1]:
                raise ApiError(422, "Invalid", "spec: Forbidden: pod updates may not change fields")
            if any(each not in (after.get("tolerations") or []) for each in before.get("tolerations") or []):
                raise ApiError(
                    422, "Invalid", "spec.tolerations: Forbidden: existing ones may not be changed"
                )


def _template(spec: Document, started: bool) -> Document:
    """What of a Job's pod template may not change: all of it once it has started, before that what says where
    its pods run may."""
    template = clone(spec.get("template") or {})
    if not started:
        for field in ("nodeSelector", "affinity", "tolerations", "schedulingGates"):
            template.get("spec", {}).pop(field, None)
        for field in ("labels", "annotations"):
            template.get("metadata", {}).pop(field, None)
    return template


def _preconditions(found: Document, options: Document, what: str) -> None:
    uid = (options.get("preconditions") or {}).get("uid")
    if uid is not None and uid != found["metadata"]["uid"]:
        raise ApiError(409, "Conflict", f"Precondition failed: UID in precondition: {uid}, of {what}")


def _may_go(plural: str, document: Document) -> bool:
    """Nothing is waited for: a pod is gone once its grace is zero, which its kubelet says."""
    return plural != "pods" or document["metadata"].get("deletionGracePeriodSeconds") == 0


def _managed(old: Document, new: Document, manager: str, at: str) -> list[Document]:
    """managedFields of spec alone, one entry per manager; lists count as one field."""
    owners: dict[tuple[str, ...], tuple[str, str]] = {}
    for entry in (old.get("metadata") or {}).get("managedFields") or []:
        for path in _leaves(entry["fieldsV1"]):
            owners[path] = entry["manager"], entry["time"]
    before, after = (dict(_values(("spec",), each.get("spec") or {})) for each in (old, new))
    for path in {*before, *after}:
        key = tuple(f"f:{name}" for name in path)
        if path not in after:
            owners.pop(key, None)
        elif before.get(path) != after[path]:
            owners[key] = manager, at
    entries: dict[tuple[str, str], Document] = {}
    for path, (who, when) in sorted(owners.items()):
        entry = entries.setdefault((who, when), {"manager": who, "time": when, "fieldsV1": {}})
        fields = entry["fieldsV1"]
        for name in path:
            fields = fields.setdefault(name, {})
    return list(entries.values())


def _leaves(fields: Document, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not fields and at:
        yield at
    for name, below in fields.items():
        yield from _leaves(below, (*at, name))


def _values(at: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _values((*at, name), below)
    else:
        yield at, value


def _same(old: Document, new: Document) -> bool:
    def bare(document: Document) -> Document:
        dropped = ("resourceVersion", "managedFields")
        metadata = {k: v for k, v in document["metadata"].items() if k not in dropped and v != {}}
        spec = {k: v for k, v in (document.get("spec") or {}).items() if v not in (None, [])}
        return {**document, "metadata": metadata, "spec": spec}

    return bare(old) == bare(new)


def clone(value: Any) -> Any:
    """A deep copy of what JSON can hold, several times as fast as copy.deepcopy."""
    if isinstance(value, dict):
        return {key: clone(each) for key, each in value.items()}
    return [clone(each) for each in value] if isinstance(value, list) else value


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def seconds(text: str) -> float:
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")))
