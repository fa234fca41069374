"""AWS's error codes and what they mean to us, on a launch and elsewhere."""

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from planaria.aws import errors
from planaria.core.cluster import Capacity, NodeGroup, Offering
from planaria.core.errors import CapacityError, PermanentError, PlanariaError, TransientError
from planaria.core.offerings import Problem, SpentToken, Unusable, advice

# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
MEANING: dict[str, type[PlanariaError] | Problem] = {
    # a placement group that is full comes as this one too
    "InsufficientInstanceCapacity": CapacityError,
    "InsufficientCapacityOnHost": CapacityError,
    "InsufficientFreeAddressesInSubnet": CapacityError,
    "InsufficientReservedInstancesCapacity": CapacityError,
    "InvalidCapacityReservationState.PendingActivation": CapacityError,
    "ReservationCapacityExceeded": CapacityError,
    "SpotMaxPriceTooLow": CapacityError,
    "UnfulfillableCapacity": CapacityError,
    "InstanceLimitExceeded": Problem.QUOTA,
    "MaxSpotInstanceCountExceeded": Problem.QUOTA,
    "VcpuLimitExceeded": Problem.QUOTA,
    "VolumeLimitExceeded": Problem.QUOTA,
    "AuthFailure": Problem.PERMISSION,
    "TagPolicyViolation": Problem.PERMISSION,
    "UnauthorizedOperation": Problem.PERMISSION,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Problem.SPOT_ROLE,
    "Blocked": Problem.ACCOUNT,
    "OptInRequired": Problem.ACCOUNT,
    "PendingVerification": Problem.ACCOUNT,
    "InvalidAMIID.Malformed": Problem.IMAGE,
    "InvalidAMIID.NotFound": Problem.IMAGE,
    "InvalidAMIID.Unavailable": Problem.IMAGE,
    "InvalidSnapshot.NotFound": Problem.IMAGE,
    "InvalidSubnet": Problem.SUBNET,
    "InvalidSubnetID.NotFound": Problem.SUBNET,
    "InvalidSubnetId.NotFound": Problem.SUBNET,
    "InvalidZone.NotFound": Problem.SUBNET,
    "InvalidGroup.NotFound": Problem.SECURITY_GROUP,
    "InvalidGroupId.Malformed": Problem.SECURITY_GROUP,
    "InvalidSecurityGroupID.NotFound": Problem.SECURITY_GROUP,
    "SecurityGroupsPerInterfaceLimitExceeded": Problem.SECURITY_GROUP,
    "InvalidKeyPair.NotFound": Problem.KEY,
    "InvalidIamInstanceProfileArn.Malformed": Problem.TEMPLATE,
    "InvalidLaunchTemplateId.VersionNotFound": Problem.TEMPLATE,
    "InvalidLaunchTemplateName.NotFoundException": Problem.TEMPLATE,
    "InvalidCapacityReservationId.Malformed": Problem.RESERVATION,
    "InvalidCapacityReservationId.NotFound": Problem.RESERVATION,
    "InvalidLaunchTargets": Problem.RESERVATION,
    "InvalidPlacementGroup.Unknown": Problem.PLACEMENT,
    "CustomerKeyHasBeenRevoked": Problem.ENCRYPTION,
    "Unsupported": Problem.TYPE,
    "UnsupportedOperation": Problem.TYPE,
    "InvalidParameterCombination": Problem.REQUEST,
    "InvalidParameterValue": Problem.REQUEST,
    "MissingParameter": Problem.REQUEST,
    "OperationNotPermitted": Problem.REQUEST,
    "IdempotentInstanceTerminated": SpentToken,
    "IdempotentParameterMismatch": SpentToken,
    "RequestLimitExceeded": TransientError,
    "Throttling": TransientError,
    "ResourceCountExceeded": TransientError,
    "InternalError": TransientError,
    "InternalFailure": TransientError,
    "ServerInternal": TransientError,
    "ServiceUnavailable": TransientError,
    "Unavailable": TransientError,
    "RequestExpired": TransientError,
    "SomethingNew": TransientError,
}


@pytest.mark.parametrize("code", MEANING)
def test_a_launch(code: str) -> None:
    found, meant = errors.of_launch(code, "m"), MEANING[code]
    assert str(found) == f"{code}: m"
    if isinstance(meant, Problem):
        assert isinstance(found, Unusable) and found.problem is meant
    else:
        assert type(found) is meant


@pytest.mark.parametrize("code", MEANING)
def test_any_other_call_sorts_alike(code: str) -> None:
    meant = MEANING[code]
    broad = PermanentError if isinstance(meant, Problem) or meant is SpentToken else meant
    assert type(errors.meaning(code, "m")) is broad


def test_no_code_means_two_things() -> None:
    assert not errors.CAPACITY & errors.THROTTLED
    assert not (errors.CAPACITY | errors.THROTTLED) & set(errors.PROBLEMS)
    assert not [code for code in errors.THROTTLED if errors.problem_of(code)]


@given(st.text(max_size=60), st.text(max_size=2000))
def test_any_code_is_one_of_ours_and_short(code: str, message: str) -> None:
    for found in (errors.meaning(code, message), errors.of_launch(code, message)):
        assert isinstance(found, CapacityError | PermanentError | TransientError)
        assert len(str(found)) <= len(code) + 2 + errors.SAID_LENGTH


@pytest.mark.parametrize("problem", Problem)
def test_every_problem_has_one_sentence_that_says_what_to_change(problem: Problem) -> None:
    group = NodeGroup("workers", 4, "planaria-demo-workers", ())
    seen = set()
    for capacity, reservation in ((Capacity.SPOT, ""), (Capacity.RESERVATION, "cr-00000000000000001")):
        said = advice(problem, Offering("p5.48xlarge", capacity, "subnet-1", reservation), group)
        assert said.endswith(".") and said[0].isupper() and ". " not in said and len(said) < 220
        seen.add(said)
    if problem in (Problem.QUOTA, Problem.RESERVATION):
        assert len(seen) == 2


def test_the_callers_own_reading_of_a_code() -> None:
    answer = {"Error": {"Code": "VcpuLimitExceeded", "Message": "m"}}
    with pytest.raises(Unusable), errors.translated(errors.of_launch):
        raise ClientError(answer, "CreateFleet")
    with pytest.raises(PermanentError), errors.translated():
        raise ClientError(answer, "CreateFleet")
