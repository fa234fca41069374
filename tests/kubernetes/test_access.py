"""Signing in at EKS: the cluster's description, and the token that names the cluster."""

import base64
import hashlib
import hmac
import urllib.parse
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.stub import Stubber

from planaria.core.errors import PermanentError, TransientError
from planaria.memory.clock import MemoryClock
from planaria.schedulers.eks.access import EksAccess

CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
DESCRIBED = {
    "cluster": {
        "name": "training",
        "status": "ACTIVE",
        "endpoint": "https://ABCDEF.gr7.us-east-1.eks.amazonaws.com",
        "certificateAuthority": {"data": base64.b64encode(CA.encode()).decode()},
    }
}


class Clients:
    """boto3 clients with keys of nobody; `eks` is stubbed."""

    def __init__(self) -> None:
        session = boto3.Session("AKIAIOSFODNN7EXAMPLE", "secret", "session-token", region_name="us-east-1")
        self.made = {"eks": session.client("eks"), "sts": session.client("sts")}
        self.eks = Stubber(self.made["eks"])
        self.asked: list[str] = []

    def __call__(self, service: str) -> Any:
        self.asked.append(service)
        return self.made[service]


@pytest.fixture
def clients() -> Clients:
    return Clients()


def access(clients: Clients, clock: MemoryClock | None = None, cluster: str = "training") -> EksAccess:
    return EksAccess(cluster, clients, (clock or MemoryClock()).now)


def decoded(token: str) -> urllib.parse.SplitResult:
    prefix, _, body = token.partition("k8s-aws-v1.")
    assert prefix == "" and "=" not in body
    return urllib.parse.urlsplit(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode())


def test_the_endpoint_is_asked_for_once_an_hour(clients: Clients) -> None:
    clock = MemoryClock()
    signing_in = access(clients, clock)
    with clients.eks:
        clients.eks.add_response("describe_cluster", DESCRIBED, {"name": "training"})
        for _ in range(3):
            found = signing_in.endpoint()
        assert (found.url, found.ca) == (DESCRIBED["cluster"]["endpoint"], CA)
        clock.advance(3601)
        clients.eks.add_response("describe_cluster", DESCRIBED, {"name": "training"})
        signing_in.endpoint()
        signing_in.renew()
        clients.eks.add_response("describe_cluster", DESCRIBED, {"name": "training"})
        signing_in.endpoint()
        clients.eks.assert_no_pending_responses()
    assert clients.asked == ["eks"], "the client is made once"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AccessDeniedException", PermanentError),
        ("ResourceNotFoundException", PermanentError),
        ("ThrottlingException", TransientError),
        ("ServerException", TransientError),
    ],
)
def test_refusals_of_describe_cluster(clients: Clients, code: str, error: type[Exception]) -> None:
    clients.eks.add_client_error("describe_cluster", code, "in words")
    with clients.eks, pytest.raises(error, match="eks:DescribeCluster of training"):
        access(clients).endpoint()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"endpoint": "", "status": "CREATING"}, TransientError, "is CREATING and has no endpoint yet"),
        ({"endpoint": "http://plain"}, TransientError, "no endpoint"),
        ({"certificateAuthority": {}}, TransientError, "no endpoint"),
        ({"certificateAuthority": {"data": "%%%"}}, PermanentError, "cannot be read"),
    ],
)
def test_a_cluster_that_cannot_be_spoken_to(
    clients: Clients, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    clients.eks.add_response("describe_cluster", {"cluster": {**DESCRIBED["cluster"], **change}})
    with clients.eks, pytest.raises(error, match=words):
        access(clients).endpoint()


def test_the_token_is_a_signed_question_who_i_am_that_names_the_cluster(clients: Clients) -> None:
    url = decoded(access(clients).token())
    query = urllib.parse.parse_qs(url.query)
    assert (url.scheme, url.netloc, url.path) == ("https", "sts.us-east-1.amazonaws.com", "/")
    assert query["Action"] == ["GetCallerIdentity"] and query["Version"] == ["2011-06-15"]
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert query["X-Amz-Expires"] == ["60"]
    assert query["X-Amz-Credential"][0].startswith("AKIAIOSFODNN7EXAMPLE/")
    assert query["X-Amz-Credential"][0].endswith("/us-east-1/sts/aws4_request")
    assert query["X-Amz-Security-Token"] == ["session-token"]


def signature(url: urllib.parse.SplitResult, cluster: str) -> str:
    """Signature Version 4 of the presigned URL with this header, as STS computes it.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
    """
    query = dict(urllib.parse.parse_qsl(url.query))
    quoted = sorted(
        (urllib.parse.quote(k, safe="~"), urllib.parse.quote(v, safe="~"))
        for k, v in query.items()
        if k != "X-Amz-Signature"
    )
    canonical = "\n".join(
        (
            "GET",
            url.path,
            "&".join(f"{k}={v}" for k, v in quoted),
            f"host:{url.netloc}\nx-k8s-aws-id:{cluster}\n",
            "host;x-k8s-aws-id",
            hashlib.sha256(b"").hexdigest(),
        )
    )
    at, scope = query["X-Amz-Date"], query["X-Amz-Credential"].partition("/")[2]
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = b"AWS4secret"
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashed}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def test_the_signature_holds_for_this_cluster_alone(clients: Clients) -> None:
    url = decoded(access(clients).token())
    signed = dict(urllib.parse.parse_qsl(url.query))["X-Amz-Signature"]
    assert signature(url, "training") == signed
    assert signature(url, "another") != signed


def test_a_token_is_used_for_fourteen_minutes(clients: Clients) -> None:
    clock = MemoryClock()
    signing_in = access(clients, clock)
    presigned: list[str] = []
    sts = clients.made["sts"]
    real = sts.generate_presigned_url

    def count(*args: Any, **kwargs: Any) -> str:
        presigned.append(str(args))
        return str(real(*args, **kwargs))

    sts.generate_presigned_url = count
    signing_in.token()
    clock.advance(839)
    signing_in.token()
    assert len(presigned) == 1
    clock.advance(2)
    signing_in.token()
    assert len(presigned) == 2
    signing_in.renew()
    signing_in.token()
    assert len(presigned) == 3
    query = urllib.parse.parse_qs(decoded(signing_in.token()).query)
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"], "the header is there once each time"


def test_without_credentials_there_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    session = botocore.session.Session()
    session.set_config_variable("region", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(TransientError, match="no token for EKS cluster training"):
        EksAccess("training", session.create_client).token()
