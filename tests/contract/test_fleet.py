"""One suite for the Fleet port, on the memory twin and on EC2 (moto); CreateFleet's wire form, stubbed."""

import dataclasses
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber
from moto import mock_aws

from planaria.aws.ec2 import Ec2Fleet
from planaria.core import tags
from planaria.core.errors import CapacityError, PermanentError, PlanariaError, TransientError
from planaria.core.offerings import SpentToken, Unusable
from planaria.core.ports import Fleet, InstanceStatus, LaunchRequest, StatusEvent
from planaria.memory.fleet import MemoryFleet

TOKEN = "3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca"
UNKNOWN = "i-0fffffffffffffff0"
AT = datetime(2026, 3, 18, 13, 19, 3, tzinfo=UTC)


_numbers = itertools.count(1)


class MemoryWorld:
    subnet, cluster = "subnet-1", "demo"

    def __init__(self) -> None:
        self.twin = MemoryFleet(self.cluster, lambda: 1_793_610_845.0)
        self.fleet: Fleet = self.twin
        self._number = 0

    def instance(self, cluster: str | None = "", **marks: str) -> str:
        self._number += 1
        node = f"i-0aaaaaaaaaaaaaaa{self._number}"
        own = {} if cluster is None else {tags.CLUSTER: cluster or self.cluster}
        self.twin.add(node, address="10.0.0.9", instance_type="p5.48xlarge", tags={**own, **marks})
        return node


class MotoWorld:
    """One account for all tests (moto needs seconds for a new one), and a cluster for each."""

    def __init__(self, account: dict[str, Any]) -> None:
        self.client, self.subnet, self.image = account["client"], account["subnet"], account["image"]
        self.cluster = f"demo-{next(_numbers)}"
        self.fleet: Fleet = Ec2Fleet(self.client, self.cluster)

    def instance(self, cluster: str | None = "", **marks: str) -> str:
        own = {} if cluster is None else {tags.CLUSTER: cluster or self.cluster}
        given = [{"Key": key, "Value": value} for key, value in {**own, **marks, "x": "y"}.items()]
        answer = self.client.run_instances(
            ImageId=self.image,
            MinCount=1,
            MaxCount=1,
            InstanceType="p5.48xlarge",
            TagSpecifications=[{"ResourceType": "instance", "Tags": given}],
        )
        return str(answer["Instances"][0]["InstanceId"])


World = MemoryWorld | MotoWorld


@pytest.fixture(scope="module")
def account() -> Iterator[dict[str, Any]]:
    with mock_aws():
        client = boto3.client("ec2", region_name="us-east-1")
        image = client.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        client.create_launch_template(
            LaunchTemplateName="planaria-demo-workers", LaunchTemplateData={"ImageId": image}
        )
        subnet = client.describe_subnets()["Subnets"][0]["SubnetId"]
        yield {"client": client, "image": image, "subnet": subnet}


@pytest.fixture(params=["memory", "moto"])
def world(request: pytest.FixtureRequest) -> World:
    return MemoryWorld() if request.param == "memory" else MotoWorld(request.getfixturevalue("account"))


def order(world: World, token: str = TOKEN) -> LaunchRequest:
    marks = {tags.GROUP: "workers", tags.NAME: "demo-1", tags.REPLACES: "i-0123456789abcdef0"}
    return LaunchRequest(token, "planaria-demo-workers", "p5.48xlarge", world.subnet, "on-demand", marks)


def test_describe_says_what_ec2_says(world: World) -> None:
    node = world.instance(**{tags.NAME: "demo-1", tags.GROUP: "workers"})
    [found] = world.fleet.describe([node, UNKNOWN])
    assert (found.node_id, found.state, found.instance_type) == (node, "running", "p5.48xlarge")
    assert (found.tags[tags.NAME], found.tags[tags.CLUSTER]) == ("demo-1", world.cluster)
    assert found.address and found.lifecycle == "on-demand"
    assert world.fleet.describe([]) == [] == world.fleet.describe([UNKNOWN])


def test_other_clusters_instances_do_not_exist_in_memory() -> None:
    _only_ours(MemoryWorld())


def test_other_clusters_instances_do_not_exist_on_ec2(account: dict[str, Any]) -> None:
    _only_ours(MotoWorld(account))


def _only_ours(world: World) -> None:
    own, other, none = world.instance(), world.instance("another"), world.instance(None)
    assert [i.node_id for i in world.fleet.cluster()] == [own]
    assert [i.node_id for i in world.fleet.describe([own, other, none])] == [own]


def test_a_launch_bears_its_token_and_tags(world: World) -> None:
    assert world.fleet.launched(TOKEN) == []
    node = world.fleet.launch(order(world))
    [found] = world.fleet.launched(TOKEN)
    assert found.node_id == node
    assert dict(found.tags).items() >= {
        tags.CLUSTER: world.cluster, tags.GROUP: "workers", tags.NAME: "demo-1", tags.LAUNCH: TOKEN,
        tags.REPLACES: "i-0123456789abcdef0",
    }.items()  # fmt: skip
    assert node in [i.node_id for i in world.fleet.cluster()]
    assert world.fleet.launched("another") == []


def test_another_token_is_another_instance(world: World) -> None:
    assert world.fleet.launch(order(world)) != world.fleet.launch(order(world, "b" * 48))


def test_a_terminated_instance_is_still_found_by_its_token(world: World) -> None:
    """A launch that finds its own instance ended must know that, and take another token."""
    node = world.fleet.launch(order(world))
    world.fleet.terminate(node)
    assert [i.state for i in world.fleet.launched(TOKEN)] in (["terminated"], ["shutting-down"])


def test_terminate_and_reboot_twice_and_of_unknown_ids_are_quiet(world: World) -> None:
    node = world.instance()
    for _ in range(2):
        world.fleet.reboot(node)
    for _ in range(2):
        world.fleet.terminate(node)
    for act in (world.fleet.reboot, world.fleet.terminate):
        act(UNKNOWN)


def test_statuses_are_those_of_running_instances_that_were_asked_for(world: World) -> None:
    running, other, ended = world.instance(), world.instance(), world.instance()
    world.fleet.terminate(ended)
    found = {status.node_id: status for status in world.fleet.statuses([running, ended, running])}
    assert set(found) == {running}, other
    assert (found[running].system, found[running].instance, found[running].events) == ("ok", "ok", ())
    assert world.fleet.statuses([]) == []


def test_an_id_that_ec2_does_not_know_keeps_no_other_status_back(world: World) -> None:
    running = world.instance()
    assert [status.node_id for status in world.fleet.statuses([UNKNOWN, running])] == [running]
    assert world.fleet.statuses([UNKNOWN]) == []


# --- the wire form of DescribeInstanceStatus, which moto fills with `ok` alone ---------------------------


def _wire_status(node: str, **more: Any) -> dict[str, Any]:
    checks = {name: {"Status": "ok"} for name in ("SystemStatus", "InstanceStatus", "AttachedEbsStatus")}
    return {"InstanceId": node, **checks, **more}


def test_checks_and_scheduled_events_of_an_instance(stubbed: Any) -> None:
    fleet, stub = stubbed
    impaired = {"Name": "reachability", "Status": "failed", "ImpairedSince": AT}
    status = _wire_status(
        UNKNOWN,
        SystemStatus={"Status": "impaired", "Details": [impaired]},
        AttachedEbsStatus={"Status": "initializing"},
        Events=[
            {
                "InstanceEventId": "instance-event-1", "Code": "instance-retirement",
                "Description": "[Completed] degraded hardware", "NotBefore": AT,
            },
            {"Code": "system-reboot"},
        ],
    )  # fmt: skip
    asked = {"InstanceIds": [UNKNOWN], "IncludeAllInstances": False}
    stub.add_response("describe_instance_status", {"InstanceStatuses": [status]}, asked)
    at = AT.timestamp()
    assert fleet.statuses([UNKNOWN]) == [
        InstanceStatus(
            UNKNOWN, "impaired", "ok", "initializing", {"system": at},
            (
                StatusEvent("instance-event-1", "instance-retirement", "[Completed] degraded hardware", at),
                StatusEvent("", "system-reboot"),
            ),
        )
    ]  # fmt: skip


def test_a_call_asks_for_at_most_100_and_every_page_is_read(stubbed: Any) -> None:
    fleet, stub = stubbed
    ids = [f"i-{number:017x}" for number in range(101)]
    first = {"InstanceIds": ids[:100], "IncludeAllInstances": False}
    answer = {"InstanceStatuses": [_wire_status(ids[0])], "NextToken": "more"}
    stub.add_response("describe_instance_status", answer, first)
    answer = {"InstanceStatuses": [_wire_status(ids[1])]}
    stub.add_response("describe_instance_status", answer, {**first, "NextToken": "more"})
    last = {"InstanceIds": ids[100:], "IncludeAllInstances": False}
    stub.add_response("describe_instance_status", {"InstanceStatuses": [_wire_status(ids[100])]}, last)
    assert [status.node_id for status in fleet.statuses(ids)] == [ids[0], ids[1], ids[100]]
    stub.assert_no_pending_responses()


def test_unknown_ids_are_left_out_once_and_other_errors_are_told(stubbed: Any) -> None:
    fleet, stub = stubbed
    ids = ["i-0aaaaaaaaaaaaaaa1", UNKNOWN]
    sentence = f"The instance IDs '{UNKNOWN}' do not exist"
    stub.add_client_error("describe_instance_status", "InvalidInstanceID.NotFound", sentence)
    known = {"InstanceIds": ids[:1], "IncludeAllInstances": False}
    stub.add_response("describe_instance_status", {"InstanceStatuses": [_wire_status(ids[0])]}, known)
    assert [status.node_id for status in fleet.statuses(ids)] == ids[:1]
    stub.add_client_error("describe_instance_status", "InvalidInstanceID.NotFound", "which one is not said")
    with pytest.raises(PlanariaError):
        fleet.statuses(ids)
    stub.add_client_error("describe_instance_status", "RequestLimitExceeded", "slow down")
    with pytest.raises(TransientError):
        fleet.statuses(ids)


# --- the wire form of CreateFleet, which neither moto nor the emulator checks ------------------------


@pytest.fixture
def stubbed() -> Iterator[tuple[Ec2Fleet, Stubber]]:
    client = boto3.client(
        "ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )  # fmt: skip
    with Stubber(client) as stub:
        yield Ec2Fleet(client, "demo"), stub


REQUEST = LaunchRequest(
    TOKEN, "planaria-demo-workers", "p5.48xlarge", "subnet-1", "spot",
    {tags.GROUP: "workers", tags.NAME: "demo-1"},
)  # fmt: skip
WIRE = {
    "Type": "instant",
    "ClientToken": TOKEN,
    "LaunchTemplateConfigs": [
        {
            "LaunchTemplateSpecification": {
                "LaunchTemplateName": "planaria-demo-workers", "Version": "$Default",
            },
            "Overrides": [{"InstanceType": "p5.48xlarge", "SubnetId": "subnet-1"}],
        }
    ],
    "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
    "TagSpecifications": [
        {
            "ResourceType": "instance",
            "Tags": [
                {"Key": "planaria:cluster", "Value": "demo"},
                {"Key": "planaria:group", "Value": "workers"},
                {"Key": "planaria:launch", "Value": TOKEN},
                {"Key": "planaria:name", "Value": "demo-1"},
            ],
        }
    ],
}  # fmt: skip


def instances(*ids: str) -> dict[str, Any]:
    return {"FleetId": "fleet-1", "Instances": [{"InstanceIds": list(ids)}], "Errors": []}


def refused(*codes: str) -> dict[str, Any]:
    return {
        "FleetId": "fleet-1",
        "Instances": [],
        "Errors": [{"ErrorCode": c, "ErrorMessage": "m"} for c in codes],
    }


def test_a_launch_is_one_create_fleet_of_type_instant_with_the_token(stubbed: Any) -> None:
    fleet, stub = stubbed
    stub.add_response("create_fleet", instances(UNKNOWN), WIRE)
    assert fleet.launch(REQUEST) == UNKNOWN
    stub.assert_no_pending_responses()


def test_a_retry_sends_exactly_the_same_parameters(stubbed: Any) -> None:
    """Other parameters under one ClientToken would be IdempotentParameterMismatch."""
    fleet, stub = stubbed
    stub.add_client_error("create_fleet", "RequestLimitExceeded", expected_params=WIRE)
    stub.add_response("create_fleet", instances(UNKNOWN), WIRE)
    with pytest.raises(TransientError):
        fleet.launch(REQUEST)
    shuffled = dataclasses.replace(REQUEST, tags=dict(reversed(list(REQUEST.tags.items()))))
    assert fleet.launch(shuffled) == UNKNOWN
    stub.assert_no_pending_responses()


def test_without_a_subnet_the_template_decides(stubbed: Any) -> None:
    fleet, stub = stubbed
    config = {**WIRE["LaunchTemplateConfigs"][0], "Overrides": [{"InstanceType": "p5.48xlarge"}]}  # type: ignore[index]
    stub.add_response("create_fleet", instances(UNKNOWN), {**WIRE, "LaunchTemplateConfigs": [config]})
    assert fleet.launch(dataclasses.replace(REQUEST, subnet="")) == UNKNOWN


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        (["InsufficientInstanceCapacity"], CapacityError),
        (["UnfulfillableCapacity", "InsufficientInstanceCapacity"], CapacityError),
        (["InsufficientFreeAddressesInSubnet"], CapacityError),
        (["ReservationCapacityExceeded"], CapacityError),
        ([], CapacityError),
        (["VcpuLimitExceeded"], Unusable),
        (["UnauthorizedOperation"], Unusable),
        (["InvalidAMIID.NotFound"], Unusable),
        (["InsufficientInstanceCapacity", "UnauthorizedOperation"], Unusable),
        (["RequestLimitExceeded"], SpentToken),
        (["RequestLimitExceeded", "InsufficientInstanceCapacity", "VcpuLimitExceeded"], SpentToken),
        (["InternalError"], SpentToken),
        (["SomethingNew"], SpentToken),
        (["InternalError", "InsufficientInstanceCapacity"], CapacityError),
    ],
)
def test_the_errors_of_a_fleet_that_launched_nothing(
    stubbed: Any, codes: list[str], error: type[PlanariaError]
) -> None:
    fleet, stub = stubbed
    stub.add_response("create_fleet", refused(*codes), WIRE)
    with pytest.raises(PlanariaError) as caught:
        fleet.launch(REQUEST)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("InsufficientInstanceCapacity", CapacityError),
        ("InvalidLaunchTemplateName.NotFoundException", Unusable),
        ("IdempotentParameterMismatch", SpentToken),
        ("IdempotentInstanceTerminated", SpentToken),
        ("UnauthorizedOperation", Unusable),
        ("RequestLimitExceeded", TransientError),
        ("ServiceUnavailable", TransientError),
    ],
)
def test_the_error_of_the_call_itself(stubbed: Any, code: str, error: type[PlanariaError]) -> None:
    fleet, stub = stubbed
    stub.add_client_error("create_fleet", code, "why")
    with pytest.raises(PlanariaError, match=f"{code}: why") as caught:
        fleet.launch(REQUEST)
    assert type(caught.value) is error


def test_an_entry_that_only_points_at_the_others_is_no_reason(stubbed: Any) -> None:
    """EC2 says of what it did not try after the first refusal: "review errors in the response"."""
    fleet, stub = stubbed
    points = {
        "ErrorCode": "UnfulfillableCapacity",
        "ErrorMessage": "Failed to fulfill capacity. Please review errors in the response.",
    }
    for others, error in ((["InternalError"], SpentToken), ([], CapacityError)):
        errors = [points, *refused(*others)["Errors"]]
        stub.add_response("create_fleet", {"Instances": [], "Errors": errors}, WIRE)
        with pytest.raises(error):
            fleet.launch(REQUEST)


def test_a_token_of_a_call_with_other_parameters_may_yet_have_an_instance(stubbed: Any) -> None:
    fleet, stub = stubbed
    for code, certain in (("IdempotentParameterMismatch", False), ("IdempotentInstanceTerminated", True)):
        stub.add_client_error("create_fleet", code, "why")
        with pytest.raises(SpentToken) as caught:
            fleet.launch(REQUEST)
        assert (caught.value.certain, caught.value.throttled) == (certain, False)
    stub.add_response("create_fleet", refused("RequestLimitExceeded"), WIRE)
    with pytest.raises(SpentToken) as caught:
        fleet.launch(REQUEST)
    assert (caught.value.certain, caught.value.throttled) == (True, True)


KINDS = {
    "on-demand": ("", "planaria-demo-workers", "on-demand"),
    "spot": ("", "planaria-demo-workers", "spot"),
    # EC2 Fleet has no word for a reservation: the launch template names it, and it is On-Demand.
    "reservation": ("cr-00000000000000001", "planaria-demo-workers-cr-00000000000000001", "on-demand"),
    "capacity-block": (
        "cr-00000000000000002",
        "planaria-demo-workers-cr-00000000000000002",
        "capacity-block",
    ),
}


@pytest.mark.parametrize("capacity", KINDS)
def test_what_is_sent_for_each_kind_of_capacity(stubbed: Any, capacity: str) -> None:
    """No options beside it: EC2 refuses OnDemandOptions for a Capacity Block."""
    fleet, stub = stubbed
    reservation, template, target = KINDS[capacity]
    spec = {"LaunchTemplateName": template, "Version": "$Default"}
    config = {**WIRE["LaunchTemplateConfigs"][0], "LaunchTemplateSpecification": spec}  # type: ignore[index]
    wire = {
        **WIRE,
        "LaunchTemplateConfigs": [config],
        "TargetCapacitySpecification": {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": target},
    }
    stub.add_client_error("create_fleet", "InternalError", expected_params=wire)
    stub.add_response("create_fleet", instances(UNKNOWN), wire)
    request = dataclasses.replace(
        REQUEST, capacity=capacity, reservation=reservation, launch_template=template, replaces=UNKNOWN
    )
    with pytest.raises(TransientError):
        fleet.launch(request)
    assert fleet.launch(request) == UNKNOWN
    stub.assert_no_pending_responses()


def test_the_host_below_an_instance_is_told_where_ec2_shows_it(stubbed: Any) -> None:
    fleet, stub = stubbed
    place = {"AvailabilityZone": "us-east-1a", "HostId": "h-0123456789abcdef0"}
    found = {
        "InstanceId": UNKNOWN, "State": {"Name": "running"}, "Placement": place,
        "CapacityReservationId": "cr-00000000000000001", "InstanceLifecycle": "capacity-block",
        "Tags": [{"Key": tags.CLUSTER, "Value": "demo"}],
    }  # fmt: skip
    for entry in (found, {**found, "Placement": {}}):
        stub.add_response("describe_instances", {"Reservations": [{"Instances": [entry]}]})
    first, second = fleet.describe([UNKNOWN])[0], fleet.describe([UNKNOWN])[0]
    assert (first.host, first.zone, second.host) == ("h-0123456789abcdef0", "us-east-1a", "")
    assert (first.reservation, first.lifecycle) == ("cr-00000000000000001", "capacity-block")


def test_describe_asks_by_id_and_leaves_out_what_ec2_does_not_know(stubbed: Any) -> None:
    fleet, stub = stubbed
    known, other = "i-0aaaaaaaaaaaaaaa1", "i-0bbbbbbbbbbbbbbb1"
    own = [{"Name": f"tag:{tags.CLUSTER}", "Values": ["demo"]}]
    stub.add_client_error(
        "describe_instances",
        "InvalidInstanceID.NotFound",
        f"The instance ID '{UNKNOWN}' does not exist",
        expected_params={"Filters": own, "InstanceIds": [UNKNOWN, known, other]},
    )
    mine = {
        "InstanceId": known,
        "State": {"Name": "running"},
        "Tags": [{"Key": tags.CLUSTER, "Value": "demo"}],
    }
    answer = {"Reservations": [{"Instances": [mine]}]}
    asked = {"Filters": own, "InstanceIds": [known, other]}
    stub.add_response("describe_instances", answer, asked)
    assert [found.node_id for found in fleet.describe([UNKNOWN, known, other])] == [known]


def test_an_instance_beside_an_error_is_an_instance(stubbed: Any) -> None:
    fleet, stub = stubbed
    both = {**instances(UNKNOWN), "Errors": refused("InsufficientInstanceCapacity")["Errors"]}
    stub.add_response("create_fleet", both, WIRE)
    assert fleet.launch(REQUEST) == UNKNOWN


@pytest.mark.parametrize("act", ["reboot", "terminate"])
def test_gone_is_quiet_and_denied_is_not(stubbed: Any, act: str) -> None:
    fleet, stub = stubbed
    stub.add_client_error(f"{act}_instances", "InvalidInstanceID.NotFound", "gone")
    getattr(fleet, act)(UNKNOWN)
    stub.add_client_error(f"{act}_instances", "UnauthorizedOperation", "no")
    with pytest.raises(PermanentError):
        getattr(fleet, act)(UNKNOWN)


def test_no_connection_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def create_fleet(self, **arguments: Any) -> Any:
            raise EndpointConnectionError(endpoint_url="https://ec2.us-east-1.amazonaws.com")

    with pytest.raises(TransientError):
        Ec2Fleet(Client(), "demo").launch(REQUEST)
