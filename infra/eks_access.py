"""What the Lambdas need to speak to an EKS cluster: leave to look it up, and an access entry of its own for
each role, in one Kubernetes group that recipes/eks/rbac.yaml gives its verbs to.

Nobody else gets an entry, and none where the cluster file names no EKS cluster. An access entry needs a
cluster whose authenticationMode is API or API_AND_CONFIG_MAP.
https://docs.aws.amazon.com/eks/latest/userguide/access-entries.html
"""

from collections.abc import Mapping

from aws_cdk import aws_eks as eks
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.grants import Grant, Targets

GROUP = "planaria"
"""The Kubernetes group of the access entries, and of the bindings in recipes/eks/rbac.yaml."""

CALLERS = (
    "triage",
    "sweep",
    "isolate_node",
    "admit_node",
    "choose_checkpoint",
    "requeue_job",
    "close_resume",
)
"""The functions that speak to the scheduler; tests/infra/test_eks_access.py follows their code."""

_LIST_ALREADY = ("triage", "sweep")


def grants(function: str, to: Targets) -> tuple[Grant, ...]:
    """eks:DescribeCluster tells endpoint and CA; which instance has a name is looked up in the ledger. The
    token is a presigned sts:GetCallerIdentity, which needs no leave."""
    if not to.eks_cluster or function not in CALLERS:
        return ()
    found = (Grant("EksCluster", ("eks:DescribeCluster",), (to.eks_cluster,)),)
    if function in _LIST_ALREADY:
        return found
    return (*found, Grant("NamesOfNodes", ("dynamodb:Query",), (f"{to.table}/index/listing",)))


class EksAccess(Construct):
    """One access entry for each caller's role."""

    def __init__(
        self, scope: Construct, construct_id: str, cluster: str, functions: Mapping[str, lambda_.Function]
    ) -> None:
        super().__init__(scope, construct_id)
        for name in CALLERS:
            role = functions[name].role
            assert role is not None, f"{name} was made with a role"
            eks.CfnAccessEntry(
                self,
                name,
                cluster_name=cluster,
                principal_arn=role.role_arn,
                kubernetes_groups=[GROUP],
                type="STANDARD",
            )
