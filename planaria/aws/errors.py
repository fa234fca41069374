"""AWS error codes sorted by what they mean to us.

Codes: EC2 API reference "Error codes", and each service's common errors. Anything unknown counts as
transient: retries are bounded, and a bounded retry of a hopeless call costs less than giving up on a
good one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError

from planaria.core.errors import CapacityError, PermanentError, PlanariaError, TransientError

CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacityOnHost",
        "MaxSpotInstanceCountExceeded",
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
        "InsufficientFreeAddressesInSubnet",
        "Unsupported",
    }
)
PERMANENT = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "IdempotentParameterMismatch",
        "InstanceLimitExceeded",
        "InvalidAMIID.Malformed",
        "InvalidAMIID.NotFound",
        "InvalidAMIID.Unavailable",
        "InvalidLaunchTemplateId.NotFoundException",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "InvalidSubnetID.NotFound",
        "MaxFleetCountExceeded",
        "OperationNotPermitted",
        "UnauthorizedOperation",
        "UnauthorizedException",
        "ValidationException",
        "VcpuLimitExceeded",
    }
)
GONE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})


def meaning(code: str, message: str) -> PlanariaError:
    """The error of ours that an AWS error code stands for."""
    text = f"{code}: {message}"
    if code in CAPACITY:
        return CapacityError(text)
    if code in PERMANENT:
        return PermanentError(text)
    return TransientError(text)


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "Unknown"))


@contextmanager
def translated() -> Iterator[None]:
    """Turns botocore's exceptions into ours."""
    try:
        yield
    except ClientError as error:
        message = str(error.response.get("Error", {}).get("Message", ""))
        raise meaning(code_of(error), message) from error
    except BotoCoreError as error:
        raise TransientError(str(error)) from error
