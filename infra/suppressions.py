"""cdk-nag findings that are meant to be so, each with its reason."""

from collections.abc import Iterable
from typing import Any

from aws_cdk import Acknowledgment, Stack, Validations
from constructs import IConstruct

from infra.grants import Grant


def accept(construct: IConstruct, rule: str, reason: str) -> None:
    """Suppress one cdk-nag finding below `construct`."""
    Validations.of(construct).acknowledge(Acknowledgment(id=rule, reason=reason))


def accept_plain_http(stack: Stack) -> None:
    """For the sandbox's stacks only."""
    for rule in ("AwsSolutions-S10", "AwsSolutions-SQS4", "AwsSolutions-SNS3"):
        accept(stack, rule, "The sandbox's emulator speaks plain HTTP, on the loopback address alone.")


def accept_wildcards(construct: IConstruct, grants: Iterable[Grant]) -> None:
    """Suppress the wildcard findings of these grants, each with the grant's own reason."""
    for grant in grants:
        for resource in grant.resources:
            text = _as_nag_prints(Stack.of(construct).resolve(resource))
            if "*" in text:
                if not grant.wildcard:
                    raise ValueError(f"the grant {grant.sid} has a wildcard and no reason")
                accept(construct, f"AwsSolutions-IAM5[Resource::{text}]", grant.wildcard)


def _as_nag_prints(resource: Any) -> str:
    """A resource after CDK resolved its tokens, as one text: `<LogicalId.Arn>/events/*`."""
    match resource:
        case str():
            return resource
        case {"Fn::Join": [str(between), [*parts]]}:
            return between.join(_as_nag_prints(part) for part in parts)
        case {"Ref": str(name)}:
            return f"<{name}>"
        case {"Fn::GetAtt": [str(name), str(attribute)]}:
            return f"<{name}.{attribute}>"
        case {"Fn::ImportValue": str(name)}:
            return name
    return str(resource)
