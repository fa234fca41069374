"""EC2's two topology calls, as the adapter makes them: ids, pages, refusals."""

import re
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.stub import Stubber

from planaria.aws.topology import INSTANCE_IDS, MOST_PAGES, RESERVATION_IDS, Ec2Topology
from planaria.core.errors import TransientError
from planaria.core.topology import Located

NEAR = ["nn-1111111111example", "nn-2222222222example", "nn-3333333333example"]
P5, M5 = "p5.48xlarge", "m5.large"


def node(number: int) -> str:
    return f"i-{number:017x}"


class Stub:
    def __init__(self) -> None:
        client = boto3.client(
            "ec2", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
        )
        self.stubber = Stubber(client)
        self.topology = Ec2Topology(client)

    def answer(self, ids: list[str], found: list[dict[str, Any]], more: str = "", token: str = "") -> None:
        asked = {"InstanceIds": ids, **({"NextToken": token} if token else {})}
        answer = {"Instances": found, **({"NextToken": more} if more else {})}
        self.stubber.add_response("describe_instance_topology", answer, asked)

    def refuse(self, ids: list[str], code: str, message: str = "no") -> None:
        self.stubber.add_client_error(
            "describe_instance_topology", code, message, expected_params={"InstanceIds": ids}
        )


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub()
    with made.stubber:
        yield made
        made.stubber.assert_no_pending_responses()


def entry(name: str, *nodes: str) -> dict[str, Any]:
    return {"InstanceId": name, "InstanceType": P5, "NetworkNodes": list(nodes), "GroupName": ""}


def test_the_nodes_of_each_instance_top_first_and_those_that_are_not_told(stub: Stub) -> None:
    ids = [node(1), node(2), node(3)]
    stub.answer(ids, [entry(ids[0], *NEAR), entry(ids[1]), {"InstanceId": "i-other", "NetworkNodes": NEAR}])
    found = stub.topology.instances(dict.fromkeys(ids, P5))
    assert found[ids[0]] == Located(tuple(NEAR))
    assert found[ids[1]].path == found[ids[2]].path == ()
    assert "does not run" in found[ids[1]].why and not found[ids[2]].final
    assert set(found) == set(ids)


def test_nobody_is_asked_about_nothing(stub: Stub) -> None:
    assert stub.topology.instances({}) == {} and stub.topology.reservations([]) == {}


def test_a_hundred_ids_a_call(stub: Stub) -> None:
    ids = [node(number) for number in range(INSTANCE_IDS + 1)]
    stub.answer(ids[:INSTANCE_IDS], [entry(name, *NEAR) for name in ids[:INSTANCE_IDS]])
    stub.answer(ids[INSTANCE_IDS:], [entry(ids[-1], *NEAR)])
    assert len(stub.topology.instances(dict.fromkeys(ids, P5))) == len(ids)


def test_all_pages_are_read(stub: Stub) -> None:
    ids = [node(1), node(2)]
    stub.answer(ids, [entry(ids[0], *NEAR)], more="page-2")
    stub.answer(ids, [entry(ids[1], *NEAR)], token="page-2")
    found = stub.topology.instances(dict.fromkeys(ids, P5))
    assert [found[name].path for name in ids] == [tuple(NEAR), tuple(NEAR)]


def test_a_token_that_never_ends_ends(stub: Stub) -> None:
    for number in range(MOST_PAGES):
        stub.answer([node(1)], [], more="again", token="again" if number else "")
    assert stub.topology.instances({node(1): P5})[node(1)].path == ()


def test_a_type_that_ec2_does_not_support_hides_no_other(stub: Stub) -> None:
    stub.refuse([node(2)], "UnsupportedOperation", "The functionality is not available in this Region")
    stub.answer([node(1)], [entry(node(1), *NEAR)])
    found = stub.topology.instances({node(1): P5, node(2): M5})
    assert found[node(1)].path == tuple(NEAR)
    assert found[node(2)].final and "UnsupportedOperation" in found[node(2)].why


def test_an_instance_that_is_gone_hides_no_other(stub: Stub) -> None:
    ids = [node(1), node(2), node(3)]
    message = f"The instance ID '{node(2)}' does not exist"
    stub.refuse(ids, "InvalidInstanceID.NotFound", message)
    stub.answer([node(1), node(3)], [entry(node(1), *NEAR), entry(node(3), *NEAR)])
    found = stub.topology.instances(dict.fromkeys(ids, P5))
    assert [bool(found[name].path) for name in ids] == [True, False, True]
    assert "does not exist" in found[node(2)].why and not found[node(2)].final


def test_where_ec2_does_not_say_which_one_is_gone_it_is_found(stub: Stub) -> None:
    ids = [node(number) for number in range(4)]
    for refused in (ids, ids[:2], ids[:1]):
        stub.refuse(refused, "InvalidInstanceID.NotFound", "One of them does not exist")
    stub.answer([ids[1]], [entry(ids[1], *NEAR)])
    stub.answer(ids[2:], [entry(name, *NEAR) for name in ids[2:]])
    found = stub.topology.instances(dict.fromkeys(ids, P5))
    assert [bool(found[name].path) for name in ids] == [False, True, True, True]


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InvalidParameterValue"])
def test_a_refusal_is_an_unknown_place_with_its_reason(stub: Stub, code: str) -> None:
    stub.refuse([node(1), node(2)], code, "x" * 4000)
    found = stub.topology.instances(dict.fromkeys((node(1), node(2)), P5))
    assert all(place.path == () and place.why.startswith(code) for place in found.values())
    assert all(len(place.why) < 500 and not place.final for place in found.values())


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "InternalError", "Unavailable"])
def test_throttling_and_outages_are_tried_again_later(stub: Stub, code: str) -> None:
    stub.refuse([node(1)], code)
    with pytest.raises(TransientError, match=code):
        stub.topology.instances({node(1): P5})


def test_reservations_ten_a_call_with_the_layers_that_are_told() -> None:
    stub = Stub()
    ids = [f"cr-{number:017x}" for number in range(RESERVATION_IDS + 1)]
    call = "describe_capacity_reservation_topology"
    told = [
        {"CapacityReservationId": ids[0], "NetworkNodes": NEAR[:1], "State": "active"},
        {"CapacityReservationId": ids[1], "NetworkNodes": NEAR, "State": "pending"},
        {"CapacityReservationId": ids[2], "State": "expired"},
    ]
    stub.stubber.add_response(
        call, {"CapacityReservations": told}, {"CapacityReservationIds": ids[:RESERVATION_IDS]}
    )
    stub.stubber.add_client_error(
        call,
        "InvalidCapacityReservationId.NotFound",
        f"The capacity reservation ID '{ids[-1]}' does not exist",
        expected_params={"CapacityReservationIds": ids[RESERVATION_IDS:]},
    )
    with stub.stubber:
        found = stub.topology.reservations(ids)
        stub.stubber.assert_no_pending_responses()
    assert found[ids[0]].path == tuple(NEAR[:1]) and found[ids[1]].path == tuple(NEAR)
    assert found[ids[2]].path == () and re.search("does not exist", found[ids[-1]].why)
    assert set(found) == set(ids)


WIRE = """<DescribeInstanceTopologyResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
  <requestId>c6593a21-9da9-4eb3-9db5-e37a5f8ed1c0</requestId>
  <instanceSet>
    <item><instanceId>{one}</instanceId><instanceType>p6-b200.48xlarge</instanceType>
      <networkNodeSet><item>nn-1</item><item>nn-2</item><item>nn-3</item><item>nn-4</item></networkNodeSet>
      <availabilityZone>us-west-2a</availabilityZone><zoneId>usw2-az2</zoneId></item>
    <item><instanceId>{two}</instanceId><instanceType>p6-b200.48xlarge</instanceType><networkNodeSet/>
      <availabilityZone>us-west-2a</availabilityZone><zoneId>usw2-az2</zoneId></item>
  </instanceSet>
</DescribeInstanceTopologyResponse>"""


def test_the_wire_form_of_four_layers_and_of_none() -> None:
    client = boto3.client("ec2", region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="x")

    class Body:
        def stream(self, **_: Any) -> Iterator[bytes]:
            yield WIRE.format(one=node(1), two=node(2)).encode()

    def answer(request: Any, **_: Any) -> AWSResponse:
        return AWSResponse(request.url, 200, {"Content-Type": "text/xml"}, Body())

    client.meta.events.register("before-send.ec2.DescribeInstanceTopology", answer)
    found = Ec2Topology(client).instances(dict.fromkeys((node(1), node(2)), "p6-b200.48xlarge"))
    assert found[node(1)].path == ("nn-1", "nn-2", "nn-3", "nn-4")
    assert found[node(2)].path == () and not found[node(2)].final


@pytest.mark.needs("emulator")
def test_the_emulator_tells_nothing_and_that_is_no_failure(emulator: Any) -> None:
    """It lists no instance, and does not know the call for reservations."""
    topology = Ec2Topology(emulator.client("ec2"))
    assert topology.instances({node(1): P5})[node(1)].path == ()
    found = topology.reservations(["cr-0123456789abcdef0"])["cr-0123456789abcdef0"]
    assert found.path == () and found.final and found.why
