"""Grants to run documents on machines: none where the cluster has no such document, as in the sandbox.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_awssystemsmanager.html
"""

from infra.grants import Grant, Maker, Targets

SEND = "ssm:SendCommand"
READS = ("ssm:GetCommandInvocation", "ssm:ListCommandInvocations")

_READS = "Reading a command's state has no resource-level permissions; it only reads."
_KEYS = "Answers get their keys from SSM, all below commands/."
_NODES = "Instance ids come and go; the cluster's tag on the instance is the limit."


def commands(slurm: tuple[str, ...] = (), nodes: tuple[str, ...] = ()) -> Maker:
    """slurm: verbs for the head node that the cluster file names. nodes: documents, without their prefix, for
    the cluster's own nodes, known by its tag."""

    def make(to: Targets) -> tuple[Grant, ...]:
        asked = _known(to, tuple(f"slurm-{verb}" for verb in slurm))
        run = _known(to, nodes)
        if not asked and not run:
            return ()
        # SSM wants leave for the document, for each instance and for the bucket of the answers.
        sent = [Grant("AskSlurm", (SEND,), (*asked, to.head_node, to.bucket))] if asked else []
        if run:
            tagged = {"StringEquals": {"ssm:resourceTag/planaria:cluster": to.cluster}}
            instances = (f"{to.account_ec2}:instance/*",)
            sent.append(Grant("RunOnNodes", (SEND,), (*run, to.bucket)))
            sent.append(Grant("OnNodes", (SEND,), instances, tagged, wildcard=_NODES))
        return (
            *sent,
            Grant("HearCommands", READS, ("*",), wildcard=_READS),
            Grant("WholeAnswers", ("s3:GetObject",), (f"{to.bucket}/commands/*",), wildcard=_KEYS),
        )

    return make


def answers_whole(bucket: str) -> Grant:
    """For the machines: SSM's agent puts what a command says there in the machine's name."""
    return Grant("CommandAnswers", ("s3:PutObject",), (f"{bucket}/commands/*",), wildcard=_KEYS)


def _known(to: Targets, names: tuple[str, ...]) -> tuple[str, ...]:
    """ARNs of those documents that the cluster has."""
    return tuple(to.documents[f"planaria-{n}"] for n in names if f"planaria-{n}" in to.documents)
