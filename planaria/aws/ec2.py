"""The Fleet port on EC2."""

import re
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

from planaria.aws.errors import GONE, THROTTLED, code_of, of_launch, translated
from planaria.core import tags
from planaria.core.cluster import Capacity
from planaria.core.errors import CapacityError, PermanentError, PlanariaError
from planaria.core.offerings import SpentToken
from planaria.core.ports import Instance, InstanceStatus, LaunchRequest, StatusEvent

STATUS_IDS = 100  # ids of one DescribeInstanceStatus call
_ID = re.compile(r"i-[0-9A-Za-z]+")


class Ec2Fleet:
    """client: a boto3 EC2 client; cluster: the value of `planaria:cluster` that makes an instance ours."""

    def __init__(self, client: Any, cluster: str) -> None:
        self._client = client
        self._cluster = cluster

    def describe(self, node_ids: Sequence[str]) -> list[Instance]:
        """Instances of this cluster among `node_ids`; ids that EC2 does not know are left out.

        By id and not by a filter: EC2 goes straight to these, however large the fleet is.
        """
        ids = list(dict.fromkeys(node_ids))
        return [instance for instance in self._by_id(ids) if instance.node_id in ids] if ids else []

    def _by_id(self, ids: list[str]) -> list[Instance]:
        """One id that EC2 does not know makes the whole call fail: it is left out then."""
        try:
            return self._describe([], ids)
        except PlanariaError as error:
            cause = error.__cause__
            if not (isinstance(cause, ClientError) and code_of(cause) in GONE):
                raise
        if len(ids) == 1:
            return []
        named = _ID.findall(str(cause))
        known = [i for i in ids if i not in named]
        if len(known) < len(ids):
            return self._by_id(known) if known else []
        return [instance for i in ids for instance in self._by_id([i])]

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

        A capacity reservation or a Capacity Block is named by the launch template; a block is a target
        capacity type of its own, for which EC2 neither takes other options nor falls back to On-Demand.
        https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateFleet.html
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-fleet-launch-instances-capacity-blocks-walkthrough.html

        Raises SpentToken where this token will never give an instance, Unusable where the offering has to be
        changed first, CapacityError and TransientError.
        """
        override = {"InstanceType": request.instance_type}
        if request.subnet:
            override["SubnetId"] = request.subnet
        marks = {tags.CLUSTER: self._cluster, **request.tags, tags.LAUNCH: request.token}
        reserved = request.capacity == Capacity.RESERVATION
        with translated(of_launch):
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
                    "DefaultTargetCapacityType": str(Capacity.ON_DEMAND if reserved else request.capacity),
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
        raise _refusal(answer.get("Errors", []))

    def reboot(self, node_id: str) -> None:
        self._unless_gone(lambda: self._client.reboot_instances(InstanceIds=[node_id]))

    def terminate(self, node_id: str) -> None:
        self._unless_gone(lambda: self._client.terminate_instances(InstanceIds=[node_id]))

    def _describe(self, filters: list[dict[str, Any]], ids: Sequence[str] = ()) -> list[Instance]:
        """Filters narrow what is sent; callers check again, for a filter that is not applied (an emulator's,
        a typing error's) would turn one node into another."""
        own = {"Name": f"tag:{tags.CLUSTER}", "Values": [self._cluster]}
        with translated():
            asked = {"InstanceIds": list(ids)} if ids else {}
            pages = self._client.get_paginator("describe_instances").paginate(
                Filters=[own, *filters], **asked
            )
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


def _refusal(errors: list[dict[str, Any]]) -> PlanariaError:
    """Why a fleet has launched nothing. Its token is answered: what may pass by itself needs another one.

    Throttling first, for only that resolves itself; then what a person must change; then capacity.
    """
    said = [(str(e.get("ErrorCode", "Unknown")), str(e.get("ErrorMessage", ""))) for e in errors]
    real = [pair for pair in said if not _only_points(*pair)]
    for code, message in real:
        if code in THROTTLED:
            return SpentToken(f"{code}: {message}", throttled=True)
    found = [of_launch(*pair) for pair in real or said]
    for kind in (PermanentError, CapacityError):
        for error in found:
            if isinstance(error, kind):
                return error
    if found:
        return SpentToken(str(found[0]))
    return CapacityError("EC2 launched nothing and gave no error")


def _only_points(code: str, message: str) -> bool:
    """An entry that stands beside the real error and says nothing more."""
    return code == "UnfulfillableCapacity" and message.startswith("Failed to fulfill capacity")


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
        host=found.get("Placement", {}).get("HostId", ""),
        state_reason=found.get("StateReason", {}).get("Code", ""),
        tags={tag["Key"]: tag["Value"] for tag in found.get("Tags", [])},
    )
