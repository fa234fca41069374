"""Launch templates: what every replacement looks like."""

import base64
import json

from tests.infra.conftest import Variant, text


def test_launch_template(aws: Variant) -> None:
    (template,) = aws.of("AWS::EC2::LaunchTemplate").values()
    properties = template["Properties"]
    data = properties["LaunchTemplateData"]
    assert properties["LaunchTemplateName"] == "planaria-demo-workers"
    assert data["ImageId"] == "ami-00000000000000001"
    assert data["SecurityGroupIds"] == ["sg-00000000000000001"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert all(mapping["Ebs"]["Encrypted"] is True for mapping in data["BlockDeviceMappings"])
    assert "InstanceType" not in data, "the offering chooses it"
    assert "KeyName" not in data
    (profile,) = aws.of("AWS::IAM::InstanceProfile")
    assert text(data["IamInstanceProfile"]["Arn"]) == f"<{profile}.Arn>"


def test_everything_launched_is_tagged(aws: Variant) -> None:
    (template,) = aws.of("AWS::EC2::LaunchTemplate").values()
    specifications = template["Properties"]["LaunchTemplateData"]["TagSpecifications"]
    assert {s["ResourceType"] for s in specifications} == {
        "instance",
        "volume",
        "network-interface",
        "spot-instances-request",
    }
    for specification in specifications:
        tags = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
        assert tags == {"planaria:cluster": "demo", "planaria:group": "workers"}


def test_user_data_is_fixed_and_names_the_cluster(aws: Variant, gameday: Variant) -> None:
    def user_data(variant: Variant) -> str:
        (template,) = variant.of("AWS::EC2::LaunchTemplate").values()
        data = template["Properties"]["LaunchTemplateData"]["UserData"]
        assert isinstance(data, str)
        return data

    assert user_data(aws) == user_data(gameday)
    script = base64.b64decode(user_data(aws)).decode()
    assert script.startswith("#!/bin/sh\n")
    facts = json.loads(next(line for line in script.splitlines() if line.startswith("{")))
    assert facts == {"cluster": "demo", "group": "workers", "bus": "planaria-demo", "region": "us-east-1"}
