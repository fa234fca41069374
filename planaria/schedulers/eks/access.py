"""Signing in at an EKS cluster: its endpoint and CA from eks:DescribeCluster, a token from IAM.

The token is a presigned STS GetCallerIdentity request that names the cluster in the signed header
x-k8s-aws-id; the API server's authenticator sends it to STS and learns who we are. It takes a token for 15
minutes after the time in it, whatever X-Amz-Expires says (60 s at most is accepted of a client).
https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster
"""

import base64
import binascii
import functools
import time
from collections.abc import Callable
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from planaria.core.errors import PermanentError, TransientError
from planaria.schedulers.eks.transport import Endpoint

TOKEN_PREFIX = "k8s-aws-v1."  # noqa: S105  a name, no secret
CLUSTER_HEADER = "x-k8s-aws-id"
EXPIRES_SECONDS = 60
VALID_SECONDS = 14 * 60.0
"""How long a token is used: a minute less than it is accepted."""

ENDPOINT_SECONDS = 3600.0
DENIED = ("AccessDeniedException", "ResourceNotFoundException", "InvalidParameterException")


class EksAccess:
    """Access of one cluster. client: makes a boto3 client of a service, once for each here.

    Raises TransientError when AWS does not answer, PermanentError when it refuses or the cluster is unusable.
    """

    def __init__(
        self, cluster: str, client: Callable[[str], Any], now: Callable[[], float] = time.time
    ) -> None:
        self._cluster = cluster
        self._client = functools.cache(client)
        self._now = now
        self._endpoint: tuple[float, Endpoint] | None = None
        self._token: tuple[float, str] | None = None
        self._signs = False

    def endpoint(self) -> Endpoint:
        if self._endpoint is None or self._now() >= self._endpoint[0]:
            self._endpoint = (self._now() + ENDPOINT_SECONDS, self._describe())
        return self._endpoint[1]

    def token(self) -> str:
        if self._token is None or self._now() >= self._token[0]:
            self._token = (self._now() + VALID_SECONDS, self._sign())
        return self._token[1]

    def renew(self) -> None:
        """The credentials behind a token may have ended before it, and a cluster may have another CA."""
        self._endpoint = self._token = None

    def _describe(self) -> Endpoint:
        try:
            cluster = self._client("eks").describe_cluster(name=self._cluster)["cluster"]
        except ClientError as error:
            said = error.response.get("Error", {})
            if said.get("Code") in DENIED:
                raise PermanentError(
                    f"eks:DescribeCluster of {self._cluster} was refused: {said.get('Message', '')}; "
                    "check `eks.cluster` in the cluster file and deploy again"
                ) from None
            raise TransientError(f"eks:DescribeCluster of {self._cluster} failed: {error}") from None
        except BotoCoreError as error:
            raise TransientError(f"eks:DescribeCluster of {self._cluster} failed: {error}") from None
        url = str(cluster.get("endpoint") or "")
        encoded = (cluster.get("certificateAuthority") or {}).get("data") or ""
        if not url.startswith("https://") or not encoded:
            raise TransientError(
                f"EKS cluster {self._cluster} is {cluster.get('status', 'in no known state')} and has no "
                "endpoint yet"
            )
        try:
            return Endpoint(url, base64.b64decode(encoded, validate=True).decode("ascii"))
        except (binascii.Error, UnicodeDecodeError):
            raise PermanentError(
                f"the CA certificate of EKS cluster {self._cluster} cannot be read"
            ) from None

    def _sign(self) -> str:
        client = self._client("sts")
        if not self._signs:
            # The header has to be there before the signature is made; botocore has no parameter for it.
            client.meta.events.register("before-sign.sts.GetCallerIdentity", self._name_cluster)
            self._signs = True
        try:
            url = client.generate_presigned_url(
                "get_caller_identity", ExpiresIn=EXPIRES_SECONDS, HttpMethod="GET"
            )
        except BotoCoreError as error:
            raise TransientError(f"no token for EKS cluster {self._cluster}: {error}") from None
        return TOKEN_PREFIX + base64.urlsafe_b64encode(str(url).encode()).decode().rstrip("=")

    def _name_cluster(self, request: Any, **_: Any) -> None:
        request.headers[CLUSTER_HEADER] = self._cluster
