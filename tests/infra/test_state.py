"""The State stack: what must survive."""

from tests.infra.conftest import Variant, text


def test_table(aws: Variant) -> None:
    (table,) = aws.of("AWS::DynamoDB::Table").values()
    properties = table["Properties"]
    assert properties["TableName"] == "planaria-demo"
    assert properties["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "expires_at", "Enabled": True}
    assert properties["SSESpecification"] == {"SSEEnabled": True}
    assert properties["DeletionProtectionEnabled"] is True
    assert table["DeletionPolicy"] == table["UpdateReplacePolicy"] == "Retain"
    (index,) = properties["GlobalSecondaryIndexes"]
    assert index == {
        "IndexName": "listing",
        "KeySchema": [
            {"AttributeName": "listing", "KeyType": "HASH"},
            {"AttributeName": "pk", "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }


def test_every_bucket_is_kept_private_and_encrypted(aws: Variant) -> None:
    buckets = aws.of("AWS::S3::Bucket")
    assert len(buckets) == 2
    for name, bucket in buckets.items():
        properties = bucket["Properties"]
        assert bucket["DeletionPolicy"] == "Retain"
        assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
        (rule,) = properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
        assert any(
            "AbortIncompleteMultipartUpload" in rule for rule in properties["LifecycleConfiguration"]["Rules"]
        )
        policies = [
            p
            for p in aws.of("AWS::S3::BucketPolicy").values()
            if text(p["Properties"]["Bucket"]) == f"<{name}>"
        ]
        (policy,) = policies
        refused = [s for s in policy["Properties"]["PolicyDocument"]["Statement"] if s["Effect"] == "Deny"]
        assert {"Bool": {"aws:SecureTransport": "false"}} in [s["Condition"] for s in refused]


def test_checkpoints_are_versioned_and_their_access_is_logged(aws: Variant) -> None:
    (bucket,) = (
        b for b in aws.of("AWS::S3::Bucket").values() if "VersioningConfiguration" in b["Properties"]
    )
    properties = bucket["Properties"]
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert "LoggingConfiguration" in properties
    for rule in properties["LifecycleConfiguration"]["Rules"]:
        current = {"ExpirationInDays", "ExpirationDate", "Transitions"} & set(rule)
        kept = current and rule["Prefix"] not in ("events/", "commands/", "transfers/")
        assert not kept, "no rule may end a checkpoint's present version"
