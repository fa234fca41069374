"""The HTTP client: pages, errors, tokens and certificates."""

import contextlib
import http.server
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from planaria.core.errors import PermanentError, TransientError
from planaria.schedulers.eks.client import KubernetesClient
from tests.kubernetes.api_server import TOKEN, ApiServer, Call
from tests.kubernetes.cluster import NAMESPACE, Cluster, FixedAccess, key_of
from tests.kubernetes.store import ApiError, Store

A = key_of(1)
NODES = "/api/v1/nodes"


def client(k8s: Cluster, **access: Any) -> KubernetesClient:
    return KubernetesClient(FixedAccess(k8s.api.url, **access), sleep=lambda _: None)


def test_what_is_not_there_is_none(k8s: Cluster) -> None:
    assert client(k8s).get(f"{NODES}/nobody") is None
    assert client(k8s).list_all("/apis/none.example/v1/namespaces/a/things") == []
    assert client(k8s).change(f"{NODES}/nobody", lambda found: {"spec": {}}) is None


def test_long_lists_are_read_page_by_page_and_begun_anew_when_they_expire(k8s: Cluster) -> None:
    k8s.api.page_limit = 2
    assert [n["metadata"]["name"] for n in client(k8s).list_all(NODES)] == [key_of(n) for n in (1, 2, 3)]
    k8s.api.expire_lists = 2
    assert len(client(k8s).list_all(NODES)) == 3
    k8s.api.expire_lists = 3
    with pytest.raises(TransientError, match="changes faster"):
        client(k8s).list_all(NODES)


@pytest.mark.parametrize(
    ("code", "error"),
    [(500, TransientError), (503, TransientError), (429, TransientError), (403, PermanentError)],
)
def test_errors_by_their_meaning(k8s: Cluster, code: int, error: type[Exception]) -> None:
    def fail(call: Call) -> None:
        raise ApiError(code, "Reason", "in words")

    k8s.api.before = fail
    with pytest.raises(error, match="in words"):
        client(k8s).get(f"{NODES}/{A}")


def test_a_busy_server_is_no_budget(k8s: Cluster) -> None:
    """Both answer 429; only one of them is about the pod."""
    k8s.add_job("gpt", 1)
    (pod,) = k8s.live("gpt")

    def busy(call: Call) -> None:
        raise ApiError(429, "TooManyRequests", "too many requests, please try again later")

    k8s.api.before = busy
    with pytest.raises(TransientError):
        client(k8s).evict(pod)


def test_a_pod_of_the_same_name_is_not_ended_for_the_one_before(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    (pod,) = k8s.live("gpt")
    pod["metadata"]["uid"] = "the one before"
    assert client(k8s).evict(pod) is False
    assert client(k8s).delete(pod, 0) is False
    assert len(k8s.live("gpt")) == 1


def test_a_token_that_has_ended_is_renewed_once(k8s: Cluster) -> None:
    access = FixedAccess(k8s.api.url, bearer="old")

    def renew() -> None:
        access.bearer = TOKEN
        access.renewed += 1

    access.renew = renew  # type: ignore[method-assign]
    assert KubernetesClient(access).get(f"{NODES}/{A}") is not None
    assert access.renewed == 1
    with pytest.raises(PermanentError, match=r"recipes/eks/rbac\.yaml and check the access entry"):
        client(k8s, bearer="never").get(f"{NODES}/{A}")


def test_nobody_there(k8s: Cluster) -> None:
    access = FixedAccess("http://127.0.0.1:1")
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1 does not answer"):
        KubernetesClient(access).get(NODES)
    assert access.renewed == 1, "the endpoint may have changed"


class _Odd(http.server.BaseHTTPRequestHandler):
    """Answers what no API server would."""

    seen: list[str] = []  # noqa: RUF012  one server at a time

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        match self.path:
            case "/redirect":
                self.send_response(302)
                self.send_header("Location", "/elsewhere")
                body = b""
            case "/html":
                self.send_response(502)
                body = b"<html>bad gateway</html>"
            case "/list":
                self.send_response(200)
                body = b"[1, 2]"
            case _:
                self.send_response(200)
                body = b'{"cut": '
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[KubernetesClient]:
    _Odd.seen.clear()
    server = http.server.HTTPServer(("127.0.0.1", 0), _Odd)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield KubernetesClient(FixedAccess(f"http://127.0.0.1:{server.server_address[1]}"))
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("path", ["/html", "/list", "/cut"])
def test_answers_that_are_none(odd: KubernetesClient, path: str) -> None:
    with pytest.raises(TransientError):
        odd.get(path)


def test_a_redirect_is_not_followed_with_the_token(odd: KubernetesClient) -> None:
    with pytest.raises(PermanentError, match="302"):
        odd.get("/redirect")
    assert len(_Odd.seen) == 1


# --- TLS -----------------------------------------------------------------------------------------


def _certificate(folder: Path, host: str) -> tuple[Path, str]:
    """A CA and a server certificate for this address, both without key identifiers, as those of EKS.

    -> (file with the server's key and certificate, the CA in PEM)
    """
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def named(name: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def made(name: str, key: Any, extension: Any, critical: bool) -> Any:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named("kubernetes"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        return builder.add_extension(extension, critical=critical).sign(ca_key, hashes.SHA256())

    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = made("kubernetes", ca_key, x509.BasicConstraints(ca=True, path_length=None), True)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    server = made("kube-apiserver", key, address, False)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / f"{host}.pem"
    file.write_bytes(secret + server.public_bytes(serialization.Encoding.PEM))
    return file, ca.public_bytes(serialization.Encoding.PEM).decode()


@contextlib.contextmanager
def _tls_server(file: Path) -> Iterator[ApiServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with ApiServer(Store(), context=context).serving() as api:
        yield api


def test_only_the_clusters_own_ca_is_trusted(tmp_path: Path) -> None:
    file, ca = _certificate(tmp_path, "127.0.0.1")
    _, other = _certificate(tmp_path, "127.0.0.2")
    with _tls_server(file) as api:
        assert KubernetesClient(FixedAccess(api.url, ca=ca)).list_all(NODES) == []
        for wrong in (other, None):
            with pytest.raises(TransientError, match="certificate verify failed"):
                KubernetesClient(FixedAccess(api.url, ca=wrong)).list_all(NODES)


def test_the_ca_of_an_eks_cluster_is_trusted_where_python_is_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like EKS', this CA has no key identifiers, and Python 3.13 asks for them by default."""
    file, ca = _certificate(tmp_path, "127.0.0.1")
    real = ssl.create_default_context

    def strict(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        context = real(*args, **kwargs)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    with _tls_server(file) as api:
        port = int(api.url.rpartition(":")[2])
        with (
            pytest.raises(ssl.SSLCertVerificationError, match="Key Identifier"),
            socket.create_connection(("127.0.0.1", port)) as plain,
            strict(cadata=ca).wrap_socket(plain, server_hostname="127.0.0.1"),
        ):
            pass
        monkeypatch.setattr(ssl, "create_default_context", strict)
        assert KubernetesClient(FixedAccess(api.url, ca=ca)).list_all(NODES) == []
        with pytest.raises(TransientError, match="certificate verify failed"):
            KubernetesClient(FixedAccess(api.url, ca=_certificate(tmp_path, "127.0.0.2")[1])).list_all(NODES)


def test_a_certificate_for_another_host_is_refused(tmp_path: Path) -> None:
    file, ca = _certificate(tmp_path, "127.0.0.2")
    with _tls_server(file) as api, pytest.raises(TransientError, match="certificate verify failed"):
        KubernetesClient(FixedAccess(api.url, ca=ca)).list_all(NODES)


def test_namespaces_keep_their_pods_apart(k8s: Cluster) -> None:
    k8s.add_job("gpt", 1)
    path = "/api/v1/namespaces/{}/pods"
    assert len(client(k8s).list_all(path.format(NAMESPACE))) == 1
    assert client(k8s).list_all(path.format("other")) == []
