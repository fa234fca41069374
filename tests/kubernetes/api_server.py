"""The Kubernetes API over HTTP, as far as the EKS adapter speaks it: a real socket, real JSON, the rules of
tests/kubernetes/store.py. Every call is recorded, tokens and RBAC are checked, and failures can be ordered.
"""

import contextlib
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kubernetes.patches import PatchFailed, json_patch, merge, strategic
from tests.kubernetes.store import RESOURCES, ApiError, Document, Store

TOKEN = "k8s-aws-v1.token"


@dataclass(frozen=True)
class Call:
    """One request in RBAC's words."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    dry: bool = False

    @property
    def writes(self) -> bool:
        return self.verb not in ("get", "list") and not self.dry


@dataclass
class ApiServer:
    """authorize: whether RBAC allows a call. before: runs before each call, as the rest of a cluster works
    on. after_write: runs once a write is done and before it is answered; a ConnectionError there loses the
    answer."""

    store: Store
    authorize: Callable[[Call], bool] = lambda call: True
    before: Callable[[Call], None] = lambda call: None
    after_write: Callable[[Call], None] = lambda call: None
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    calls: list[Call] = field(default_factory=list)
    url: str = ""
    page_limit: int = 0
    """More objects than this never come in one page, whatever the client asks; 0: as many as it asks."""

    expire_lists: int = 0
    """So many continued lists are answered 410."""

    context: ssl.SSLContext | None = None

    @contextlib.contextmanager
    def serving(self) -> Iterator["ApiServer"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        scheme = "http"
        if self.context is not None:
            server.socket = self.context.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.writes]


def _handler(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_PATCH(self) -> None:
            self._serve("PATCH")

        def do_DELETE(self) -> None:
            self._serve("DELETE")

        def _serve(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                status, document = self._answer(method, body)
            except ApiError as error:
                status, document = error.code, _status(error)
            except ConnectionError:
                self.close_connection = True
                return
            data = json.dumps(document).encode()
            with contextlib.suppress(OSError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def _answer(self, method: str, body: bytes) -> tuple[int, Document]:
            given = self.headers.get("Authorization", "")
            if given.removeprefix("Bearer ") not in api.tokens:
                raise ApiError(401, "Unauthorized", "Unauthorized")
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            document = json.loads(body) if body else {}
            call = _call(method, url.path, document)
            if not api.authorize(call):
                api.calls.append(call)
                raise ApiError(403, "Forbidden", f'cannot {call.verb} resource "{call.resource}"')
            api.before(call)
            with api.store.lock:
                api.calls.append(call)
                answer = self._do(call, query, document)
            if call.writes:
                api.after_write(call)
            return answer

        def _do(self, call: Call, query: dict[str, str], document: Any) -> tuple[int, Document]:
            store, place = api.store, (call.resource, call.namespace, call.name)
            match call.verb, call.subresource:
                case "get", "":
                    return 200, store.get(*place)
                case "list", "":
                    return 200, _page(api, call, query)
                case "create", "eviction":
                    return 201, store.evict(call.namespace, call.name, document)
                case "delete", "":
                    return 200, store.delete(*place, document)
                case "patch", "" | "status":
                    return 200, self._patch(call, query, document)
            raise ApiError(405, "MethodNotAllowed", f"{call.verb} {call.subresource} is not supported")

        def _patch(self, call: Call, query: dict[str, str], document: Any) -> Document:
            old = api.store.get(call.resource, call.namespace, call.name)
            kind = self.headers.get("Content-Type", "")
            try:
                match kind:
                    case "application/merge-patch+json":
                        new = merge(old, document)
                    case "application/json-patch+json":
                        new = json_patch(old, document)
                    case "application/strategic-merge-patch+json" if RESOURCES[call.resource].built_in:
                        new = strategic(old, document)
                    case _:
                        raise ApiError(
                            415, "UnsupportedMediaType", f"the body of type {kind} is not accepted"
                        )
            except PatchFailed as error:
                raise ApiError(422, "Invalid", str(error)) from None
            told = document.get("metadata") or {} if isinstance(document, dict) else {}
            if "resourceVersion" not in told:
                new["metadata"].pop("resourceVersion", None)  # whatever is there now is changed
            manager = query.get("fieldManager") or self.headers.get("User-Agent", "unknown").split("/")[0]
            return api.store.update(
                call.resource, call.namespace, new, manager, status=call.subresource == "status"
            )

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def _page(api: ApiServer, call: Call, query: dict[str, str]) -> Document:
    found = api.store.select(
        call.resource, call.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
    )
    limit = int(query.get("limit") or 0) or len(found) or 1
    limit = min(limit, api.page_limit) if api.page_limit else limit
    start = int(query.get("continue") or 0)
    if start and api.expire_lists > 0:
        api.expire_lists -= 1
        raise ApiError(410, "Expired", "The provided continue parameter is too old")
    more = str(start + limit) if start + limit < len(found) else ""
    kind = RESOURCES[call.resource].kind
    metadata = {"resourceVersion": "1", **({"continue": more} if more else {})}
    return {"kind": f"{kind}List", "metadata": metadata, "items": found[start : start + limit]}


def _call(method: str, path: str, document: Any) -> Call:
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, rest = "", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, rest = parts[1], parts[3:]
        api = f"{parts[1]}/{parts[2]}"
    else:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource = rest[0]
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    known = RESOURCES.get(resource)
    if known is None or (group and known.api != api):
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    verbs = {"GET": "get" if name else "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
    options = document.get("deleteOptions") or document if isinstance(document, dict) else {}
    return Call(verbs[method], group, resource, subresource, namespace, name, bool(options.get("dryRun")))


def _status(error: ApiError) -> Document:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": error.reason,
        "message": str(error),
        "code": error.code,
        "details": {"causes": error.causes},
    }
