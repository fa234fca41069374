"""The SNS topic on which Planaria calls people, and the key that encrypts it."""

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from infra.settings import Settings


class Notices(Construct):
    """A customer key, for alarms cannot publish to a topic under the key that AWS manages."""

    def __init__(self, scope: Construct, construct_id: str, settings: Settings) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        alarms = f"arn:{stack.partition}:cloudwatch:{stack.region}:{stack.account}:alarm:{settings.prefix}-*"
        from_our_alarms = {
            "StringEquals": {"aws:SourceAccount": stack.account},
            "ArnLike": {"aws:SourceArn": alarms},
        }
        cloudwatch = iam.ServicePrincipal("cloudwatch.amazonaws.com")
        key = kms.Key(
            self,
            "Key",
            description=f"Planaria {settings.cluster}: notices",
            enable_key_rotation=True,
            removal_policy=RemovalPolicy.DESTROY,
        )
        key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Alarms",
                principals=[cloudwatch],
                actions=["kms:GenerateDataKey*", "kms:Decrypt"],
                resources=["*"],  # in a key's policy: this key
                conditions=from_our_alarms,
            )
        )
        self.topic = sns.Topic(
            self,
            "Topic",
            topic_name=settings.named("notices"),
            display_name=f"Planaria {settings.cluster}",
            master_key=key,
            enforce_ssl=settings.tls_only,
        )
        self.topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Alarms",
                principals=[cloudwatch],
                actions=["sns:Publish"],
                resources=[self.topic.topic_arn],
                conditions=from_our_alarms,
            )
        )
        self.topic_arn = self.topic.topic_arn
        self.key_arn = key.key_arn
