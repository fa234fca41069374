"""A small HTTP proxy before an S3 endpoint: it lets all through but what a test wants refused or torn."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Verdict = Callable[[str, str], int | None]
"""(method, path with its query) -> the status to answer with; 0: hang up; None: let it through."""


@contextmanager
def proxy(url: str, judge: Verdict) -> Iterator[str]:
    """-> its own address. The signature covers the Host header, which is passed on as it came."""
    behind = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            verdict = judge(self.command, self.path)
            if verdict == 0:
                self.close_connection = True
                return
            if verdict is not None:
                code = {403: "AccessDenied", 503: "SlowDown"}.get(verdict, "InternalError")
                told = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
                self._answer(verdict, {"Content-Type": "application/xml"}, told)
                return
            connection = http.client.HTTPConnection(behind.hostname or "", behind.port, timeout=60)
            try:
                headers = {
                    name: value for name, value in self.headers.items() if name.lower() != "connection"
                }
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                self._answer(answer.status, dict(answer.getheaders()), answer.read())
            finally:
                connection.close()

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in (
                    "transfer-encoding",
                    "connection",
                    "content-length",
                    "date",
                    "server",
                ):
                    self.send_header(name, value)
            length = headers.get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any  # noqa: N815

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
