"""A small HTTP server for this machine alone: JSON in, JSON out, a token in every request."""

import hmac
import json
import logging
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from planaria.core.errors import PlanariaError, TransientError
from planaria.sandbox.errors import SandboxError
from planaria.sandbox.ports import LOOPBACK
from planaria.schedulers.process import TOKEN_HEADER

Route = Callable[[dict[str, Any]], Mapping[str, Any]]
LONGEST_BODY = 1 << 20
logger = logging.getLogger(__name__)


class LocalApi:
    """routes: {("POST", "/path"): function from the body to the answer}. An error of ours becomes 400 with
    {"error": sentence} (503 for TransientError), a wrong token 403, a defect 500."""

    def __init__(self, port: int, token: str, routes: Mapping[tuple[str, str], Route]) -> None:
        """Raises SandboxError when the port cannot be had."""
        if not token:
            raise SandboxError("The sandbox's head needs a token.")

        class Handler(_Handler):
            known = routes
            secret = token.encode()

        try:
            self._server = _Server((LOOPBACK, port), Handler)
        except OSError as error:
            why = error.strerror
            raise SandboxError(f"Port {port} cannot be used ({why}); choose another one.") from None
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), name="api", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(5.0)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_address = True


class _Handler(BaseHTTPRequestHandler):
    known: Mapping[tuple[str, str], Route] = {}
    secret = b""
    timeout = 10
    server_version = "planaria"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        status, answer = self._answer(method)
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, method: str) -> tuple[int, Mapping[str, Any]]:
        if not hmac.compare_digest(self.headers.get(TOKEN_HEADER, "").encode(), self.secret):
            return 403, {"error": "the token is wrong"}
        route = self.known.get((method, self.path))
        if route is None:
            return 404, {"error": f"there is no {method} {self.path}"}
        try:
            document = self._document() if method == "POST" else {}
        except ValueError as error:
            return 400, {"error": str(error)}
        try:
            return 200, route(document)
        except TransientError as error:
            return 503, {"error": str(error)}
        except PlanariaError as error:
            return 400, {"error": str(error)}
        except Exception as error:
            logger.exception("%s %s", method, self.path)
            return 500, {"error": f"{type(error).__name__}: {error}"}

    def _document(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LONGEST_BODY:
            raise ValueError(f"a body of at most {LONGEST_BODY} bytes with Content-Length is needed")
        try:
            document = json.loads(self.rfile.read(int(length)))
        except ValueError:
            raise ValueError("the body is not JSON") from None
        if not isinstance(document, dict):
            raise ValueError("the body must be a JSON object")
        return document

    def log_message(self, *_: Any) -> None:
        """Requests are not news."""
