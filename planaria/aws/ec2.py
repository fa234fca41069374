"""The Fleet port on EC2."""

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

from planaria.aws.errors import GONE, code_of, meaning, translated
from planaria.core import tags
from planaria.core.errors import CapacityError, PermanentError, PlanariaError, TransientError
from planaria.core.ports import Instance, LaunchRequest


class Ec2Fleet:
    """client: a boto3 EC2 client; cluster: the value of `planaria:cluster` that makes an instance ours."""

    def __init__(self, client: Any, cluster: str) -> None:
        self._client = client
        self._cluster = cluster

    def describe(self, node_ids: Sequence[str]) -> list[Instance]:
        """Instances of this cluster among `node_ids`; ids that EC2 does not know are left out."""
        if not node_ids:
            return []
        found = self._describe([{"Name": "instance-id", "Values": list(node_ids)}])
        return [instance for instance in found if instance.node_id in node_ids]

    def cluster(self) -> list[Instance]:
        return self._describe([])

    def launched(self, token: str) -> list[Instance]:
        found = self._describe([{"Name": f"tag:{tags.LAUNCH}", "Values": [token]}])
        return [instance for instance in found if instance.tags.get(tags.LAUNCH) == token]

    def launch(self, request: LaunchRequest) -> str:
        """CreateFleet of type `instant` with one instance: the one launch call, idempotent by ClientToken.

        https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateFleet.html
        """
        override = {"InstanceType": request.instance_type}
        if request.subnet:
            override["SubnetId"] = request.subnet
        marks = {tags.CLUSTER: self._cluster, **request.tags, tags.LAUNCH: request.token}
        with translated():
            answer = self._client.create_fleet(
                Type="instant",
                ClientToken=request.token,
                LaunchTemplateConfigs=[
                    {
                        "LaunchTemplateSpecification": {
                            "LaunchTemplateName": request.launch_template,
                            "Version": "$Default",
                        },
                        "Overrides": [override],
                    }
                ],
                TargetCapacitySpecification={
                    "TotalTargetCapacity": 1,
                    "DefaultTargetCapacityType": request.capacity,
                },
                TagSpecifications=[
                    {
                        "ResourceType": "instance",
                        "Tags": [{"Key": key, "Value": value} for key, value in sorted(marks.items())],
                    }
                ],
            )
        launched = [node for group in answer.get("Instances", []) for node in group["InstanceIds"]]
        if launched:
            return str(launched[0])
        raise _worst(answer.get("Errors", []))

    def reboot(self, node_id: str) -> None:
        self._unless_gone(lambda: self._client.reboot_instances(InstanceIds=[node_id]))

    def terminate(self, node_id: str) -> None:
        self._unless_gone(lambda: self._client.terminate_instances(InstanceIds=[node_id]))

    def _describe(self, filters: list[dict[str, Any]]) -> list[Instance]:
        """Filters narrow what is sent; callers check again, for a filter that is not applied (an emulator's,
        a typing error's) would turn one node into another."""
        own = {"Name": f"tag:{tags.CLUSTER}", "Values": [self._cluster]}
        with translated():
            pages = self._client.get_paginator("describe_instances").paginate(Filters=[own, *filters])
            raw = [found for page in pages for group in page["Reservations"] for found in group["Instances"]]
        return [i for i in map(_instance, raw) if i.tags.get(tags.CLUSTER) == self._cluster]

    @staticmethod
    def _unless_gone(call: Any) -> None:
        try:
            with translated():
                call()
        except PlanariaError as error:
            cause = error.__cause__
            if not (isinstance(cause, ClientError) and code_of(cause) in GONE):
                raise


def _worst(errors: list[dict[str, Any]]) -> PlanariaError:
    """A permanent error needs a person; else capacity, the next offering; else try again."""
    found = [meaning(str(e.get("ErrorCode", "Unknown")), str(e.get("ErrorMessage", ""))) for e in errors]
    for kind in (PermanentError, CapacityError, TransientError):
        for error in found:
            if isinstance(error, kind):
                return error
    return CapacityError("EC2 launched nothing and gave no error")


def _instance(found: dict[str, Any]) -> Instance:
    launched = found.get("LaunchTime")
    return Instance(
        node_id=found["InstanceId"],
        state=found["State"]["Name"],
        instance_type=found.get("InstanceType", ""),
        zone=found.get("Placement", {}).get("AvailabilityZone", ""),
        lifecycle=found.get("InstanceLifecycle", "on-demand"),
        launched_at=launched.timestamp() if launched else 0.0,
        address=found.get("PrivateIpAddress", ""),
        reservation=found.get("CapacityReservationId", ""),
        state_reason=found.get("StateReason", {}).get("Code", ""),
        tags={tag["Key"]: tag["Value"] for tag in found.get("Tags", [])},
    )
