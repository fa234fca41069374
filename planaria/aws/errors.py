"""AWS error codes sorted by what they mean to us.

Codes: EC2 API reference "Error codes",
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html, and each service's common errors.
Anything unknown counts as transient: retries are bounded, and a bounded retry of a hopeless call costs less
than giving up on a good one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError

from planaria.core.errors import CapacityError, PermanentError, PlanariaError, TransientError
from planaria.core.offerings import Problem, SpentToken, Unusable

# A limit of a placement group arrives as InsufficientInstanceCapacity too.
CAPACITY = frozenset(
    {
        "InsufficientCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientReservedInstancesCapacity",
        "InsufficientVolumeCapacity",
        "InvalidCapacityReservationState.PendingActivation",  # a Capacity Block that has not begun
        "ReservationCapacityExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
    }
)
# RequestLimitExceeded is EC2's; the others are what the services and the SDKs call the same.
THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "ResourceCountExceeded",
        "RequestResourceCountExceeded",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)
# What a person has to change before this offering works again.
PROBLEMS: Mapping[str, Problem] = {
    **dict.fromkeys(
        (
            "AttachmentLimitExceeded",
            "HostLimitExceeded",
            "InstanceLimitExceeded",
            "MaxFleetCountExceeded",
            "MaxIOPSLimitExceeded",
            "MaxSpotFleetRequestCountExceeded",
            "MaxSpotInstanceCountExceeded",
            "NetworkInterfaceLimitExceeded",
            "ResourceLimitExceeded",
            "VcpuLimitExceeded",
            "VolumeLimitExceeded",
        ),
        Problem.QUOTA,
    ),
    **dict.fromkeys(
        (
            "AccessDenied",
            "AccessDeniedException",
            "AuthFailure",
            "InvalidClientTokenId",
            "TagPolicyViolation",
            "UnauthorizedException",
            "UnauthorizedOperation",
        ),
        Problem.PERMISSION,
    ),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Problem.SPOT_ROLE,
    **dict.fromkeys(("AccountDisabled", "Blocked", "OptInRequired", "PendingVerification"), Problem.ACCOUNT),
    **dict.fromkeys(("InvalidZone.NotFound", "InvalidAvailabilityZone"), Problem.SUBNET),
    **dict.fromkeys(("InvalidLaunchTargets", "UnsupportedException"), Problem.RESERVATION),
    **dict.fromkeys(("CustomerKeyHasBeenRevoked", "EncryptedVolumesNotSupported"), Problem.ENCRYPTION),
    **dict.fromkeys(
        ("InvalidInstanceType", "Unsupported", "UnsupportedOperation", "VolumeTypeNotAvailableInZone"),
        Problem.TYPE,
    ),
    **dict.fromkeys(
        (
            "ClientInvalidParameterValue",
            "InvalidBlockDeviceMapping",
            "InvalidInput",
            "InvalidParameter",
            "InvalidParameterCombination",
            "InvalidParameterDependency",
            "InvalidParameterValue",
            "InvalidRequest",
            "InvalidTenancy",
            "MissingInput",
            "MissingParameter",
            "OperationNotPermitted",
            "UnknownParameter",
            "VPCIdNotSpecified",
            "VPCResourceNotSpecified",
            "ValidationException",
        ),
        Problem.REQUEST,
    ),
}
# Codes that name what is wrong and go on with .NotFound, .Malformed, .Unavailable, NotFoundException...
FAMILIES: Mapping[str, Problem] = {
    "InvalidAMIID": Problem.IMAGE,
    "InvalidSnapshot": Problem.IMAGE,
    "InvalidManifest": Problem.IMAGE,
    "InvalidSubnet": Problem.SUBNET,
    "InvalidVpcID": Problem.SUBNET,
    "InvalidGroup": Problem.SECURITY_GROUP,
    "InvalidSecurityGroup": Problem.SECURITY_GROUP,
    "SecurityGroupsPer": Problem.SECURITY_GROUP,
    "InvalidKeyPair": Problem.KEY,
    "InvalidLaunchTemplate": Problem.TEMPLATE,
    "InvalidIamInstanceProfile": Problem.TEMPLATE,
    "InvalidCapacityReservation": Problem.RESERVATION,
    "InvalidCapacityBlock": Problem.RESERVATION,
    "InvalidPlacementGroup": Problem.PLACEMENT,
    "KMSKey": Problem.ENCRYPTION,
    "InvalidKMSKey": Problem.ENCRYPTION,
}
TERMINATED, MISMATCH = "IdempotentInstanceTerminated", "IdempotentParameterMismatch"
GONE = frozenset({"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"})
# Of SSM's SendCommand: the document or how we fill it in is wrong. InvalidInstanceId is not among them: an
# instance whose agent does not report at present is "cannot reach".
COMMAND_REFUSED = frozenset(
    {
        "InvalidDocument",
        "InvalidDocumentVersion",
        "InvalidOutputFolder",
        "InvalidParameters",
        "InvalidRole",
        "MaxDocumentSizeExceeded",
        "UnsupportedPlatformType",
    }
)
# Of S3, where a HeadObject's answer has no body and so no code but its status.
OBJECT_REFUSED = frozenset(
    {
        "403",
        "404",
        "405",
        "AllAccessDisabled",
        "Forbidden",
        "InvalidAccessKeyId",
        "InvalidObjectState",
        "MethodNotAllowed",
        "NoSuchBucket",
        "NoSuchKey",
        "NoSuchUpload",
        "NotFound",
        "PreconditionFailed",
        "SignatureDoesNotMatch",
    }
)

SAID_LENGTH = 400
"""UnauthorizedOperation comes with a coded message of kilobytes."""


def meaning(code: str, message: str) -> PlanariaError:
    """The error of ours that an AWS error code stands for."""
    text = f"{code}: {message[:SAID_LENGTH]}"
    if code in CAPACITY:
        return CapacityError(text)
    if code in (TERMINATED, MISMATCH) or problem_of(code):
        return PermanentError(text)
    return TransientError(text)


def of_launch(code: str, message: str) -> PlanariaError:
    """The same for a launch, where a problem is one of the offering, and a token can be used up."""
    text = f"{code}: {message[:SAID_LENGTH]}"
    if code in (TERMINATED, MISMATCH):
        return SpentToken(text, certain=code == TERMINATED)
    problem = None if code in CAPACITY else problem_of(code)
    return meaning(code, message) if problem is None else Unusable(problem, text)


def of_command(code: str, message: str) -> PlanariaError:
    """The same for SSM Run Command."""
    if code in COMMAND_REFUSED:
        return PermanentError(f"{code}: {message[:SAID_LENGTH]}")
    return meaning(code, message)


def of_object(code: str, message: str) -> PlanariaError:
    """The same for S3."""
    if code in OBJECT_REFUSED:
        return PermanentError(f"{code}: {message[:SAID_LENGTH]}")
    return meaning(code, message)


def problem_of(code: str) -> Problem | None:
    """What is wrong with what we ask for; None for all that may pass by itself."""
    if code in PROBLEMS:
        return PROBLEMS[code]
    return next((problem for head, problem in FAMILIES.items() if code.startswith(head)), None)


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "Unknown"))


@contextmanager
def translated(mean: Callable[[str, str], PlanariaError] = meaning) -> Iterator[None]:
    """Turns botocore's exceptions into ours."""
    try:
        yield
    except ClientError as error:
        message = str(error.response.get("Error", {}).get("Message", ""))
        raise mean(code_of(error), message) from error
    except BotoCoreError as error:
        raise TransientError(str(error)) from error
