"""Every failure as one sentence that names the way out, and its exit status."""

from collections.abc import Iterator
from typing import Any

from planaria.core.errors import InvalidInput, PlanariaError
from planaria.core.table import Conflict
from planaria.sandbox.errors import SandboxError

BAD_INPUT = 2
FAILED = 1

_LOGGED_OUT = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "AuthFailure",
}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError"}
_NOT_DEPLOYED = {
    "ResourceNotFoundException",
    "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue",
    "StateMachineDoesNotExist",
}


def sentence(error: BaseException) -> tuple[str, int] | None:
    """The sentence and the exit status of an expected failure; None for a defect."""
    for cause in _causes(error):
        found = _of_aws(cause)
        if found:
            return found, FAILED
    if isinstance(error, InvalidInput):
        return _one(str(error)), BAD_INPUT
    if isinstance(error, SandboxError):
        return str(error), FAILED  # may carry the last lines of a log
    if isinstance(error, PlanariaError):
        return _one(str(error)), FAILED
    if isinstance(error, Conflict):
        return "The ledger's row changed meanwhile; run the same command again.", FAILED
    if isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename else ""
        return f"{what}{error.strerror or error}.", FAILED
    return None


def _of_aws(error: BaseException) -> str:
    from botocore import exceptions as aws  # most commands never fail

    match error:
        case aws.NoCredentialsError() | aws.PartialCredentialsError():
            return (
                "There are no AWS credentials: log in (`aws sso login`, `aws configure` or AWS_PROFILE), "
                "or start a sandbox with `planaria sandbox up`."
            )
        case aws.ProfileNotFound() | aws.SSOError() | aws.UnauthorizedSSOTokenError():
            return f"{_one(str(error))} Log in again with `aws sso login`, or set AWS_PROFILE."
        case aws.NoRegionError():
            return "No AWS region is set: set AWS_REGION, or a region in your AWS profile."
        case aws.EndpointConnectionError() | aws.ConnectTimeoutError() | aws.ReadTimeoutError():
            said = _one(str(error)).rstrip(".")
            return f"AWS does not answer ({said}); check the network, the region and AWS_ENDPOINT_URL."
        case aws.ClientError():
            return _of_code(error)
        case aws.BotoCoreError():
            return _one(str(error))
    return ""


def _of_code(error: Any) -> str:
    """error: a botocore ClientError."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = _one(str(error.response.get("Error", {}).get("Message", "")))
    if code in _LOGGED_OUT:
        return f"AWS refuses these credentials ({code}); log in again."
    if code in _DENIED:
        return f"These credentials may not do that: {message}"
    if code == "NoSuchBucket":
        told = error.response["Error"]
        name = str(told.get("BucketName") or str(told.get("Resource", "")).strip("/").partition("/")[0])
        return f"There is no bucket {name or 'of that name'} at this endpoint."
    if code in _NOT_DEPLOYED:
        return (
            "This cluster is not deployed in this account and region; `make deploy` deploys it, --cluster "
            f"names another one ({error.operation_name}: {code})."
        )
    return f"AWS refuses {error.operation_name}: {code}: {message}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _one(text: str) -> str:
    """One sentence on one line, with its full stop."""
    line = " ".join(text.split())
    if not line:
        return "It failed and gave no reason."
    line = line[0].upper() + line[1:] if line[:1].isalpha() and line.split()[0].isalpha() else line
    return line if line[-1] in ".!?" else f"{line}."
