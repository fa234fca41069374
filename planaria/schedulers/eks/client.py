"""A small client of the Kubernetes API, without any dependency.

Answers are documents as Kubernetes has them. `change` is the only way to write to an object: it reads, asks
what is to be different, and sends that with the resourceVersion it has read; whoever wrote in between wins,
and it is tried again.
"""

import random
import time
import urllib.parse
from collections.abc import Callable, Mapping

from planaria.core.errors import PermanentError, TransientError
from planaria.schedulers.eks.names import MANAGER
from planaria.schedulers.eks.transport import TIMEOUT_SECONDS, Access, Document, Transport

PAGE = 250
"""Objects in one answer: a Node is some 20 KB."""

WRITE_TRIES = 6
MERGE_PATCH = "application/merge-patch+json"


class Conflict(Exception):
    """409: the object has another resourceVersion or uid by now, or exists already."""


class Refused(Exception):
    """429 to an eviction: a PodDisruptionBudget does not allow it now."""


class KubernetesClient:
    """One request at a time. Raises TransientError (no answer, 5xx, throttled), PermanentError (401, 403 and
    what the server finds wrong), Conflict and Refused; 404 is None."""

    def __init__(
        self,
        access: Access,
        timeout: float = TIMEOUT_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport = Transport(access, timeout)
        self._sleep = sleep

    # --- reading ---------------------------------------------------------------------------------

    def get(self, path: str) -> Document | None:
        return self._call("GET", path)

    def list_all(self, path: str, **query: str) -> list[Document]:
        """Every object, page by page; none where the kind or the namespace does not exist."""
        for _ in range(3):
            try:
                return self._pages(path, query)
            except _Expired:
                continue
        raise TransientError(f"the list {path} changes faster than it can be read")

    def _pages(self, path: str, query: Mapping[str, str]) -> list[Document]:
        found: list[Document] = []
        more = ""
        while True:
            asked = {**query, "limit": str(PAGE), **({"continue": more} if more else {})}
            page = self._call("GET", f"{path}?{urllib.parse.urlencode(asked)}")
            if page is None:
                return found
            found += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return found

    # --- writing ---------------------------------------------------------------------------------

    def change(
        self, path: str, different: Callable[[Document], Document | None], known: Document | None = None
    ) -> Document | None:
        """Make the object as `different` says: a merge patch for what it is given, None for "as it is".

        -> the object afterwards, None when there is none. known: the object as read lately. Raises
        TransientError when others write to it all the time.
        """
        for number in range(WRITE_TRIES):
            found = known if known is not None and number == 0 else self.get(path)
            if found is None:
                return None
            patch = different(found)
            if patch is None:
                return found
            metadata = {**patch.get("metadata", {}), "resourceVersion": found["metadata"]["resourceVersion"]}
            try:
                return self._call(
                    "PATCH", f"{path}?fieldManager={MANAGER}", {**patch, "metadata": metadata}, MERGE_PATCH
                )
            except Conflict:
                # Jitter below a tenth of a second, doubling: the other writers are quick.
                self._sleep(random.uniform(0, 0.02 * 2**number))  # noqa: S311  no secret
        raise TransientError(f"{path} was changed by others {WRITE_TRIES} times while it was to be written")

    def pause(self, seconds: float) -> None:
        """Let others work on."""
        self._sleep(seconds)

    def evict(self, pod: Document, grace: int | None = None, dry_run: bool = False) -> bool:
        """Ask for the pod's end, within its PodDisruptionBudgets. False when it is gone; raises Refused."""
        options: Document = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if dry_run:
            options["dryRun"] = ["All"]
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        path = f"{path_of(pod)}/eviction" + ("?dryRun=All" if dry_run else "")
        try:
            return self._call("POST", path, body, eviction=True) is not None
        except Conflict:
            return False  # another pod has this name by now

    def delete(self, pod: Document, grace: int) -> bool:
        """End the pod within `grace` seconds; 0 takes it out of the API without asking its kubelet."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace,
            "preconditions": {"uid": pod["metadata"]["uid"]},
        }
        try:
            return self._call("DELETE", path_of(pod), body) is not None
        except Conflict:
            return False

    # --- one call --------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        content_type: str = "application/json",
        eviction: bool = False,
    ) -> Document | None:
        for last in (False, True):
            status, said = self._transport.send(method, path, body, content_type)
            if status == 401 and not last:
                self._transport.renew()
                continue
            break
        if 200 <= status < 300:
            return said
        message = str(said.get("message") or said.get("reason") or "")[:300]
        if status == 404:
            return None
        if status == 409:
            raise Conflict(message)
        if status == 410:
            raise _Expired(message)
        if eviction and _over_budget(status, said):
            raise Refused(message)
        if status == 429 or status >= 500:
            raise TransientError(f"the Kubernetes API answered {status} to {method} {path}: {message}")
        if status in (401, 403):
            raise PermanentError(
                f"the Kubernetes API refused {method} {path} ({status}: {message}); "
                "apply recipes/eks/rbac.yaml and check the access entry of this Lambda's role (docs/eks.md)"
            )
        raise PermanentError(f"the Kubernetes API refused {method} {path}: {status} {message}")


class _Expired(Exception):
    """410: the server has forgotten this list's state."""


def path_of(pod: Document) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _over_budget(status: int, said: Document) -> bool:
    """An eviction that a budget refuses. A 429 without that cause is the API server being busy; a pod with
    two budgets is never evicted, and the server calls that an error of its own."""
    message = str(said.get("message", "")).lower()
    if status == 500:
        return "more than one poddisruptionbudget" in message
    causes = (said.get("details") or {}).get("causes") or []
    told = any(cause.get("reason") == "DisruptionBudget" for cause in causes)
    return status == 429 and (told or "disruption budget" in message)
