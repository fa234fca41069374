"""Events as AWS, the agents and the sandbox send them, as the text of an SQS message."""

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

_ids = itertools.count(1)


def event(
    source: str,
    detail_type: str,
    detail: dict[str, Any],
    at: float,
    identity: str = "",
    resources: Sequence[str] = (),
) -> str:
    return json.dumps(
        {
            "version": "0",
            "id": identity or f"event-{next(_ids)}",
            "detail-type": detail_type,
            "source": source,
            "account": "111122223333",
            # AWS cuts times to whole seconds.
            "time": datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": "us-east-1",
            "resources": list(resources),
            "detail": detail,
        }
    )


def agent(node: str, detail_type: str, at: float, **detail: Any) -> str:
    # Every report of readiness is of a boot of its own; which boot the others are of is not said here.
    boot = f"boot-{at}" if detail_type == "Planaria Node Ready" else ""
    body = {"version": 1, "instance_id": node, "boot_id": boot, "seq": 1, "time": at, **detail}
    return event(f"planaria.node/AROA:{node}", detail_type, body, at)


def xid(node: str, code: int, at: float) -> str:
    message = f"NVRM: Xid (PCI:0000:b3:00.0): {code}, pid=1, GPU has fallen off the bus."
    return agent(node, "Planaria Node Signal", at, kind="xid", code=str(code), message=message, count=1)


def ready(node: str, at: float, name: str, address: str, passed: bool = True, reason: str = "") -> str:
    check = {"passed": passed, "reason": reason}
    return agent(node, "Planaria Node Ready", at, name=name, address=address, check=check)


def job_exit(node: str, job: str, attempt: int, rank: int, code: int, at: float) -> str:
    detail = {"job_id": job, "attempt": attempt, "rank": rank, "event": "exit", "exit_code": code}
    return agent(node, "Planaria Job Signal", at, **detail)


def job_step(node: str, job: str, attempt: int, step: int, at: float) -> str:
    detail = {"job_id": job, "attempt": attempt, "rank": 0, "event": "step", "step": step, "loss": 2.5}
    return agent(node, "Planaria Job Signal", at, **detail)


def spot(node: str, at: float, identity: str = "") -> str:
    detail = {"instance-id": node, "instance-action": "terminate"}
    return event("aws.ec2", "EC2 Spot Instance Interruption Warning", detail, at, identity)


def state(node: str, word: str, at: float) -> str:
    detail = {"instance-id": node, "state": word}
    return event("aws.ec2", "EC2 Instance State-change Notification", detail, at)


def hyperpod(node: str, status: str, reason: str, repair: str, at: float) -> str:
    summary = {
        "HealthStatus": status, "HealthStatusReason": reason, "RepairAction": repair, "Recommendation": "",
    }  # fmt: skip
    detail = {"ClusterName": "c", "InstanceId": node, "HealthSummary": summary}
    return event("aws.sagemaker", "SageMaker HyperPod Cluster Node Health Event", detail, at)


def retirement(node: str, at: float) -> str:
    """What sweep finds in EC2's scheduled events: a planned end."""
    detail = {
        "version": 1, "instance_id": node, "kind": "scheduled_event", "code": "instance-retirement",
        "time": at, "starts_at": at + 86_400, "description": "retirement",
    }  # fmt: skip
    return event("planaria.sweep", "Planaria Sweep Finding", detail, at)


def alarm(node: str, metric: str, word: str, at: float, identity: str = "") -> str:
    """An alarm on one status check; word: ALARM, OK or INSUFFICIENT_DATA."""
    moment = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f+0000")
    dimensions = {"InstanceId": node}
    stat = {"metric": {"namespace": "AWS/EC2", "name": metric, "dimensions": dimensions}, "period": 60}
    detail = {
        "alarmName": f"{metric}-{node}",
        "state": {"value": word, "reason": "Threshold Crossed", "timestamp": moment},
        "previousState": {"value": "INSUFFICIENT_DATA", "timestamp": moment},
        "configuration": {"metrics": [{"id": "m0", "metricStat": stat, "returnData": True}]},
    }
    return event("aws.cloudwatch", "CloudWatch Alarm State Change", detail, at, identity)


def condition(node: str, kind: str, status: str, reason: str, at: float) -> str:
    """A condition of the Kubernetes node, as sweep or the node's agent passes it on."""
    moment = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    said = {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": moment}
    return event(
        "planaria.sweep",
        "EKS Node Monitoring Condition",
        {"version": 1, "instance_id": node, "condition": said},
        at,
    )


def lifecycle(node: str, at: float) -> str:
    """Auto Scaling is about to terminate the instance and waits for its hook."""
    detail = {
        "LifecycleActionToken": "87654321-4321-4321-4321-210987654321", "AutoScalingGroupName": "workers",
        "LifecycleHookName": "drain", "EC2InstanceId": node, "Origin": "AutoScalingGroup",
        "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "Destination": "EC2",
    }  # fmt: skip
    return event("aws.autoscaling", "EC2 Instance-terminate Lifecycle Action", detail, at)
