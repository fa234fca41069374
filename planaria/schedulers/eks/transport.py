"""HTTP to one API server: TLS with the cluster's own CA, a bearer token, JSON both ways."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Protocol

from planaria.core.errors import TransientError
from planaria.schedulers.eks.names import MANAGER

Document = dict[str, Any]

TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server is. ca: its CA certificate in PEM, None for the system's."""

    url: str
    ca: str | None = None


class Access(Protocol):
    """Where the API server is and how we sign in; `renew`: what it said is not true any more."""

    def endpoint(self) -> Endpoint: ...
    def token(self) -> str: ...
    def renew(self) -> None: ...


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the token elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Transport:
    """One request at a time. Raises TransientError when nothing that is JSON comes back."""

    def __init__(self, access: Access, timeout: float = TIMEOUT_SECONDS) -> None:
        self._access = access
        self._timeout = timeout
        self._opener: tuple[Endpoint, urllib.request.OpenerDirector] | None = None

    def renew(self) -> None:
        """Look up the endpoint and sign in anew with the next request."""
        self._access.renew()
        self._opener = None

    def send(self, method: str, path: str, body: Document | None, content_type: str) -> tuple[int, Document]:
        endpoint = self._access.endpoint()
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  the endpoint is the cluster's own, see _open
            endpoint.url.rstrip("/") + path,
            data=data,
            method=method,
            headers={
                "Authorization": f"Bearer {self._access.token()}",
                "Accept": "application/json",
                "Content-Type": content_type,
                "User-Agent": MANAGER,
            },
        )
        try:
            with self._open(endpoint).open(request, timeout=self._timeout) as answer:
                return int(answer.status), _object(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _status(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._out_of_reach(endpoint, error) from None

    def _open(self, endpoint: Endpoint) -> urllib.request.OpenerDirector:
        if self._opener is None or self._opener[0] != endpoint:
            handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirect()]
            if endpoint.url.startswith("https:"):
                handlers.append(urllib.request.HTTPSHandler(context=_context(endpoint.ca)))
            self._opener = (endpoint, urllib.request.build_opener(*handlers))
        return self._opener[1]

    def _out_of_reach(self, endpoint: Endpoint, error: Exception) -> TransientError:
        self.renew()  # the address or the CA may have changed
        return TransientError(f"the Kubernetes API at {endpoint.url} does not answer: {error}")


def _context(ca: str | None) -> ssl.SSLContext:
    """With the cluster's CA no other is trusted.

    The certificates that EKS makes for a cluster have no key identifiers. From Python 3.13 on the default is
    stricter and refuses them; chain, dates and host name are checked all the same.
    https://github.com/kubernetes-client/python/issues/2394
    """
    context = ssl.create_default_context(cadata=ca)
    if ca is not None:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _object(body: bytes) -> Document:
    document = json.loads(body)
    if not isinstance(document, dict):
        raise ValueError("the answer is no JSON object")
    return document


def _status(error: urllib.error.HTTPError) -> Document:
    """Kubernetes' own Status; a load balancer in between answers with something else."""
    try:
        return _object(error.read())
    except (OSError, ValueError, http.client.HTTPException):
        return {"message": str(error.reason)}
