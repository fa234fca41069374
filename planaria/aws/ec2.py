"""The Fleet port on EC2."""

import re
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

from planaria.aws.errors import GONE, code_of, meaning, translated
from planaria.core import tags
from planaria.core.errors import CapacityError, PermanentError, PlanariaError, TransientError
from planaria.core.ports import Instance, InstanceStatus, LaunchRequest, StatusEvent

STATUS_IDS = 100  # ids of one DescribeInstanceStatus call
_ID = re.compile(r"i-[0-9A-Za-z]+")


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

    def statuses(self, node_ids: Sequence[str]) -> list[InstanceStatus]:
        """DescribeInstanceStatus of running instances: a call per 100 ids, two where EC2 does not know all.

        https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html
        """
        ids = list(dict.fromkeys(node_ids))
        chunks = [ids[start : start + STATUS_IDS] for start in range(0, len(ids), STATUS_IDS)]
        return [_status(found) for chunk in chunks for found in self._statuses(chunk)]

    def _statuses(self, ids: list[str]) -> list[dict[str, Any]]:
        """One id that EC2 does not know (yet) makes the whole call fail: it is left out then."""
        try:
            found = self._described_status(ids)
        except PlanariaError as error:
            cause = error.__cause__
            known = [i for i in ids if i not in _ID.findall(str(cause))]
            if not (isinstance(cause, ClientError) and code_of(cause) in GONE) or len(known) == len(ids):
                raise
            found = self._described_status(known) if known else []
        return [status for status in found if status["InstanceId"] in ids]

    def _described_status(self, ids: list[str]) -> list[dict[str, Any]]:
        with translated():
            pages = self._client.get_paginator("describe_instance_status").paginate(
                InstanceIds=ids, IncludeAllInstances=False
            )
            return [status for page in pages for status in page["InstanceStatuses"]]

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


def _status(found: dict[str, Any]) -> InstanceStatus:
    checks = {
        "system": found.get("SystemStatus") or {},
        "instance": found.get("InstanceStatus") or {},
        "ebs": found.get("AttachedEbsStatus") or {},
    }
    since = {
        name: detail["ImpairedSince"].timestamp()
        for name, check in checks.items()
        for detail in check.get("Details", [])
        if detail.get("ImpairedSince")
    }
    events = tuple(map(_status_event, found.get("Events", [])))
    words = {name: str(check.get("Status", "")) for name, check in checks.items()}
    return InstanceStatus(node_id=found["InstanceId"], since=since, events=events, **words)


def _status_event(found: dict[str, Any]) -> StatusEvent:
    return StatusEvent(
        event_id=found.get("InstanceEventId", ""),
        code=found.get("Code", ""),
        description=found.get("Description", ""),
        not_before=found["NotBefore"].timestamp() if found.get("NotBefore") else None,
    )


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
