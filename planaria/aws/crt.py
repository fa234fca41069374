"""Requests to S3 by the AWS Common Runtime (awscrt): its S3 client moves the bytes, signs, retries and
spreads the load over connections; credentials come from its default chain (environment, profile, web
identity, IMDS).

The endpoint is AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL where one is set, else S3's own in the region.
"""

import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit
from xml.sax.saxutils import unescape

from awscrt import auth, http, s3
from awscrt import io as crt_io
from awscrt.exceptions import AwsCrtError

from planaria.core.errors import PermanentError, PlanariaError, TransientError
from planaria.core.transfers import PART, Cause

WATCH_SECONDS = 0.2
"""How often a waiting caller looks whether it is to stop."""
CONNECT_MILLISECONDS = 5000
DENIED = frozenset(
    {"AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
Headers = Iterable[tuple[str, str]]


class Stopped(TransientError):
    """The caller's `stop` was set."""

    def __init__(self) -> None:
        super().__init__("stopped before it was done; start it again and it goes on")


class Refused(PermanentError):
    """S3 answered with an error. status: HTTP's; code: S3's word, "" where the answer had no body."""

    def __init__(self, status: int, code: str, message: str) -> None:
        said = f"{code}: {message}" if message and message != code else code
        super().__init__(f"S3 answered {status} {said}".strip()[:400])
        self.status = status
        self.code = code

    @property
    def cause(self) -> Cause:
        if self.code == "NoSuchUpload":
            return Cause.OTHER
        if self.status in (401, 403) or self.code in DENIED:
            return Cause.DENIED
        if self.status == 404 or self.code in ("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"):
            return Cause.BAD
        return Cause.CHANGED if self.status == 412 else Cause.OTHER


class Unreached(TransientError):
    """No whole answer came, however often it was asked."""


@dataclass(frozen=True, slots=True)
class Reply:
    """headers: by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Connect:
    """region, endpoint: "" where the environment tells. bytes_per_second: of all that one engine moves, None
    for no limit. threads: of the runtime's event loops, 0 for its own choice."""

    region: str = ""
    endpoint: str = ""
    bytes_per_second: float | None = None
    threads: int = 0

    @property
    def known_region(self) -> str:
        """Raises PermanentError where nobody tells it."""
        found = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not found:
            raise PermanentError("no AWS region is set; set AWS_REGION to the one of the bucket")
        return found

    @property
    def known_endpoint(self) -> str:
        return (
            self.endpoint
            or os.environ.get("AWS_ENDPOINT_URL_S3", "")
            or os.environ.get("AWS_ENDPOINT_URL", "")
        )


@dataclass(frozen=True, slots=True)
class Host:
    """Where the objects of one bucket are. base: what comes before a key in the path, with a final `/`."""

    name: str
    port: int
    tls: bool
    base: str

    @property
    def header(self) -> str:
        return self.name if self.port == (443 if self.tls else 80) else f"{self.name}:{self.port}"

    def path(self, key: str) -> str:
        return self.base + quote(key, safe="/-_.~")

    @staticmethod
    def of(bucket: str, region: str, endpoint: str) -> "Host":
        """Path style for an endpoint of one's own and for names with dots, which no certificate covers."""
        if endpoint:
            url = urlsplit(endpoint)
            if url.scheme not in ("http", "https") or not url.hostname:
                raise PermanentError(f"the S3 endpoint {endpoint!r} is no http:// or https:// address")
            tls = url.scheme == "https"
            return Host(
                url.hostname, url.port or (443 if tls else 80), tls, f"{url.path.rstrip('/')}/{bucket}/"
            )
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        if "." in bucket:
            return Host(f"s3.{region}.{domain}", 443, True, f"/{bucket}/")
        return Host(f"{bucket}.s3.{region}.{domain}", 443, True, "/")


class Call:
    """A request under way."""

    def __init__(self) -> None:
        self.future: Future[Reply] = Future()
        self.request: Any = None

    def reply(self, stop: threading.Event | None = None) -> Reply:
        """Wait for it. Raises Refused, Unreached, what reading the body raised, or Stopped."""
        while True:
            try:
                return self.future.result(WATCH_SECONDS if stop is not None else None)
            except NotYet:
                if stop is not None and stop.is_set():
                    self.cancel()
                    raise Stopped from None

    def cancel(self) -> None:
        """End it, and wait until it has ended: its buffers and callbacks are used no more."""
        if self.request is not None:
            self.request.cancel()
        self.future.exception(timeout=30)


class Crt:
    """One bucket. Safe for many threads."""

    def __init__(self, bucket: str, connect: Connect) -> None:
        self.bucket = bucket
        self.region = connect.known_region
        self.host = Host.of(bucket, self.region, connect.known_endpoint)
        loops = crt_io.EventLoopGroup(connect.threads or None)
        bootstrap = crt_io.ClientBootstrap(loops, crt_io.DefaultHostResolver(loops))
        self.credentials = auth.AwsCredentialsProvider.new_default_chain(bootstrap)
        tls = s3.S3RequestTlsMode
        self._client = s3.S3Client(
            bootstrap=bootstrap,
            region=self.region,
            tls_mode=tls.ENABLED if self.host.tls else tls.DISABLED,
            signing_config=s3.create_default_s3_signing_config(
                region=self.region, credential_provider=self.credentials
            ),
            part_size=PART,
            throughput_target_gbps=s3.get_recommended_throughput_target_gbps() or 10.0,
            connect_timeout_ms=CONNECT_MILLISECONDS,
        )

    def ask(
        self,
        method: str,
        key: str,
        operation: str,
        query: str = "",
        headers: Headers = (),
        body: Any = None,
        length: int = 0,
        checksum: bool = False,
        on_body: Callable[[bytes, int], None] | None = None,
        kind: Any = s3.S3RequestType.DEFAULT,
    ) -> Call:
        """Begin a request. body: bytes, or what has readinto(view) and seek(offset, whence), of `length`
        bytes. checksum: the runtime adds its CRC64NVME. on_body: called with each piece and where in the
        answer it begins, in order; otherwise the answer's body is kept."""
        call = Call()
        kept: list[bytes] = []
        found: dict[str, str] = {}
        status = [0]
        stream = io.BytesIO(body) if isinstance(body, bytes) else body
        size = len(body) if isinstance(body, bytes) else length
        sent = [("Host", self.host.header), *headers]
        if method in ("PUT", "POST"):
            sent.append(("Content-Length", str(size)))
        path = self.host.path(key) + (f"?{query}" if query else "")

        def answered(status_code: int, headers: list[tuple[str, str]], **_: Any) -> None:
            status[0] = status_code
            found.update((name.lower(), value) for name, value in headers)

        def read(chunk: bytes, offset: int, **_: Any) -> None:
            if on_body is None:
                kept.append(bytes(chunk))
            else:
                on_body(chunk, offset)

        def done(error: Any = None, **told: Any) -> None:
            if error is None:
                call.future.set_result(Reply(status[0], found, b"".join(kept)))
            else:
                call.future.set_exception(_meaning(error, told))

        config = None
        if checksum:
            config = s3.S3ChecksumConfig(s3.S3ChecksumAlgorithm.CRC64NVME, s3.S3ChecksumLocation.HEADER)
        try:
            call.request = self._client.make_request(
                type=kind,
                operation_name=operation,
                request=http.HttpRequest(method, path, http.HttpHeaders(sent), stream),
                checksum_config=config,
                on_headers=answered,
                on_body=read,
                on_done=done,
            )
        except AwsCrtError as error:
            raise _meaning(error, {}) from None
        return call

    def ask_bucket(self, operation: str, query: str) -> Call:
        """A GET of the bucket itself, such as a listing."""
        return self.ask("GET", "", operation, query)


def _meaning(error: Any, told: Mapping[str, Any]) -> Exception:
    """What the runtime's error means. S3's answers come as XML; a HEAD has none."""
    status = int(told.get("status_code") or getattr(error, "status_code", None) or 0)
    body = bytes(told.get("error_body") or getattr(error, "body", None) or b"")
    if status >= 300:
        code, message = text_of(body, "Code"), text_of(body, "Message")
        if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
            return Unreached(f"S3 answered {status} {code} however often it was asked".replace("  ", " "))
        if not code:
            code = {403: "AccessDenied", 404: "NotFound", 412: "PreconditionFailed"}.get(status, "")
        return Refused(status, code, message)
    if isinstance(error, AwsCrtError):
        if "CREDENTIALS" in error.name or error.name.startswith("AWS_AUTH_"):
            return PermanentError(f"there are no AWS credentials that can be used ({error.name})")
        return Unreached(f"S3 could not be reached ({error.name})")
    return (
        error if isinstance(error, PlanariaError | OSError) else Unreached(f"{type(error).__name__}: {error}")
    )


def text_of(body: bytes, tag: str) -> str:
    """The first element of this name in one of S3's answers, "" where there is none."""
    found = re.search(rf"<{tag}>([^<]*)</{tag}>".encode(), body)
    return plain(found[1]) if found else ""


def plain(text: bytes) -> str:
    """Text of an element as it was before it was escaped."""
    return unescape(
        text.decode("utf-8", errors="replace"), {"&quot;": '"', "&apos;": "'", "&#34;": '"', "&#39;": "'"}
    )


class Throttle:
    """At most so many bytes a second, over all threads; bursts of a fifth of a second are let through."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, size: int, stop: threading.Event | None = None) -> None:
        """Wait until so many bytes may be moved. Raises Stopped."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now - 0.2, self._free_at)
            self._free_at = begin + size / self._rate
            wait = begin - now
        while wait > 0:
            if stop is not None and stop.wait(min(wait, WATCH_SECONDS)):
                raise Stopped
            if stop is None:
                time.sleep(min(wait, WATCH_SECONDS))
            wait -= WATCH_SECONDS
