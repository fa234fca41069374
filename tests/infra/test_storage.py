"""The Storage stack: file systems, their links to S3, who reaches them, and what calls a person."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest

import app
from tests.infra.conftest import SANDBOX, Variant, context, statements, synth, text, user_data

OLD = "fs-0123456789abcdef0"
STORED = f"""
name: demo
region: us-east-1
scheduler: slurm
slurm: {{head_node: i-0123456789abcdef0}}
checkpoints:
  file_systems:
    - name: scratch
      mount: /fsx
      zone: us-east-1a
      create:
        vpc: vpc-00000000000000001
        subnet: subnet-00000000000000001
        storage_gib: 9600
        throughput: 500
        metadata_iops: 12000
        efa: true
        compression: LZ4
        maintenance: "7:03:00"
      associations:
        - {{file_system_path: /checkpoints, data_repository_path: checkpoints}}
        - file_system_path: /data
          data_repository_path: s3://training-data/v1
          auto_import: [NEW, CHANGED]
        - file_system_path: /logs
          data_repository_path: s3://training-data/logs
          auto_export: [NEW, CHANGED]
          import_on_create: false
    - name: small
      mount: /small
      zone: us-east-1a
      create:
        vpc: vpc-00000000000000001
        subnet: subnet-00000000000000001
        storage_gib: 1200
        deployment: SCRATCH_2
    - name: old
      id: {OLD}
      mount: /old
      zone: us-east-1a
      associations: [{{file_system_path: /, data_repository_path: s3://old-bucket}}]
  retention:
    fsx: {{keep: 2}}
    s3: {{keep: 10, keep_hours: 48, keep_every: 1000, keep_tags: [release]}}
  rpo_minutes: 45
  replication: {{bucket: planaria-copies, region: eu-west-1, storage_class: STANDARD_IA}}
node_groups:
  - name: workers
    size: 4
    launch:
      image: ami-00000000000000001
      subnets: [subnet-00000000000000001, subnet-00000000000000002]
      zones: {{subnet-00000000000000001: us-east-1a, subnet-00000000000000002: us-east-1b}}
      security_groups: [sg-00000000000000001]
      efa: true
    offerings:
      - {{instance_type: p5.48xlarge}}
"""

Resource = dict[str, Any]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    folder = tmp_path_factory.mktemp("stored")
    (folder / "cluster.yaml").write_text(STORED)
    return synth(folder / "out", cluster=str(folder / "cluster.yaml"), nag="true")


@pytest.fixture(scope="module")
def storage(stored: Variant) -> dict[str, Resource]:
    """logical id -> resource of the Storage stack."""
    found: dict[str, Resource] = template(stored)["Resources"]
    return found


def template(variant: Variant) -> dict[str, Any]:
    return dict(json.loads((variant.folder / "Planaria-demo-Storage.template.json").read_text()))


def of(resources: dict[str, Resource], kind: str) -> dict[str, Resource]:
    return {name: each for name, each in resources.items() if each["Type"] == kind}


def made(resources: dict[str, Resource], name: str) -> tuple[str, Resource]:
    """The file system of this name: its logical id, and the resource."""
    for key, each in of(resources, "AWS::FSx::FileSystem").items():
        if {"Key": "Name", "Value": f"planaria-demo-{name}"} in each["Properties"]["Tags"]:
            return key, each
    raise AssertionError(name)


def test_a_file_system_is_made_as_the_file_says(storage: dict[str, Resource]) -> None:
    _, resource = made(storage, "scratch")
    properties = resource["Properties"]
    assert properties["FileSystemType"] == "LUSTRE" and properties["FileSystemTypeVersion"] == "2.15"
    assert properties["StorageType"] == "SSD" and properties["StorageCapacity"] == 9600
    assert properties["SubnetIds"] == ["subnet-00000000000000001"]
    lustre = properties["LustreConfiguration"]
    log = lustre.pop("LogConfiguration")
    assert lustre == {
        "DeploymentType": "PERSISTENT_2",
        "PerUnitStorageThroughput": 500,
        "MetadataConfiguration": {"Mode": "USER_PROVISIONED", "Iops": 12000},
        "EfaEnabled": True,
        "DataCompressionType": "LZ4",
        "WeeklyMaintenanceStartTime": "7:03:00",
    }
    assert log["Level"] == "WARN_ERROR"
    assert text(log["Destination"]).endswith(":log-group:/aws/fsx/planaria-demo-scratch"), (
        "and no :* behind it"
    )
    _, small = made(storage, "small")
    assert small["Properties"]["LustreConfiguration"] == {
        "DeploymentType": "SCRATCH_2", "DataCompressionType": "NONE",
    }  # fmt: skip
    assert len(of(storage, "AWS::FSx::FileSystem")) == 2, "the old one is there already"


def test_nothing_that_holds_data_goes_with_the_stack(storage: dict[str, Resource]) -> None:
    for kind in ("AWS::FSx::FileSystem", "AWS::FSx::DataRepositoryAssociation", "AWS::EC2::SecurityGroup"):
        assert of(storage, kind)
        for resource in of(storage, kind).values():
            assert resource["DeletionPolicy"] == resource["UpdateReplacePolicy"] == "Retain"


def test_associations_are_made_one_after_another(storage: dict[str, Resource]) -> None:
    fs, _ = made(storage, "scratch")
    links = of(storage, "AWS::FSx::DataRepositoryAssociation")
    ordered = sorted(links.items(), key=lambda item: len(item[1].get("DependsOn", [])))
    by_path = {each["Properties"]["FileSystemPath"]: (key, each) for key, each in ordered}
    assert list(by_path) == ["/checkpoints/", "/data/", "/logs/"]
    before = None
    for key, each in by_path.values():
        assert each["Properties"]["FileSystemId"] == {"Ref": fs}
        assert each.get("DependsOn", []) == ([before] if before else [])
        before = key
    repositories = {
        path: text(each["Properties"]["DataRepositoryPath"]) for path, (_, each) in by_path.items()
    }
    assert repositories["/data/"] == "s3://training-data/v1/"
    assert repositories["/checkpoints/"].startswith("s3://<Planaria-demo-State:")
    assert repositories["/checkpoints/"].endswith(">/checkpoints/")
    policies = {path: each["Properties"].get("S3") for path, (_, each) in by_path.items()}
    assert policies == {
        "/checkpoints/": None,
        "/data/": {"AutoImportPolicy": {"Events": ["NEW", "CHANGED"]}},
        "/logs/": {"AutoExportPolicy": {"Events": ["NEW", "CHANGED"]}},
    }
    on_create = [each["Properties"]["BatchImportMetaDataOnCreate"] for _, each in by_path.values()]
    assert on_create == [True, True, False]


def test_lustre_and_nothing_else_reaches_a_file_system(storage: dict[str, Resource]) -> None:
    _, small = made(storage, "small")
    group = small["Properties"]["SecurityGroupIds"][0]["Fn::GetAtt"][0]
    assert rules(storage, group) == {
        (way, "tcp", first, last, peer)
        for way in ("in", "out")
        for first, last in ((988, 988), (1018, 1023))
        for peer in ("itself", "sg-00000000000000001")
    }
    (nowhere,) = storage[group]["Properties"]["SecurityGroupEgress"]
    assert nowhere["CidrIp"] == "255.255.255.255/32", "or EC2 lets it call everybody"
    back = [
        (r["Properties"]["FromPort"], r["Properties"]["ToPort"])
        for r in of(storage, "AWS::EC2::SecurityGroupIngress").values()
        if r["Properties"]["GroupId"] == "sg-00000000000000001"
        and text(r["Properties"]["SourceSecurityGroupId"]) == f"<{group}.GroupId>"
    ]
    assert sorted(back) == [(988, 988), (1018, 1023)], "file servers call their clients too"


def test_with_efa_all_traffic_between_the_groups_and_no_other_passes(storage: dict[str, Resource]) -> None:
    _, scratch = made(storage, "scratch")
    group = scratch["Properties"]["SecurityGroupIds"][0]["Fn::GetAtt"][0]
    peers = ("itself", "sg-00000000000000001")
    assert rules(storage, group) == {(way, "-1", None, None, peer) for way in ("in", "out") for peer in peers}
    out = [
        r["Properties"]["IpProtocol"]
        for r in of(storage, "AWS::EC2::SecurityGroupEgress").values()
        if r["Properties"]["GroupId"] == "sg-00000000000000001"
    ]
    assert out == ["-1"], "EFA wants a rule that names the group, whatever else may go out"


def rules(resources: dict[str, Resource], group: str) -> set[tuple[Any, ...]]:
    found = set()
    ways = {"in": ("Ingress", "SourceSecurityGroupId"), "out": ("Egress", "DestinationSecurityGroupId")}
    for way, (kind, peer) in ways.items():
        for rule in of(resources, f"AWS::EC2::SecurityGroup{kind}").values():
            properties = rule["Properties"]
            if text(properties["GroupId"]) == f"<{group}.GroupId>":
                who = text(properties[peer])
                who = "itself" if who == f"<{group}.GroupId>" else who
                ports = properties.get("FromPort"), properties.get("ToPort")
                found.add((way, properties["IpProtocol"], *ports, who))
    return found


def test_a_file_system_waits_for_its_rules(storage: dict[str, Resource]) -> None:
    for name in ("scratch", "small"):
        _, resource = made(storage, name)
        group = resource["Properties"]["SecurityGroupIds"][0]["Fn::GetAtt"][0]
        own = {
            key
            for key, each in storage.items()
            if each["Type"].startswith("AWS::EC2::SecurityGroup")
            and f"<{group}.GroupId>" in {text(v) for v in each["Properties"].values() if isinstance(v, dict)}
        }
        assert own and own <= set(resource["DependsOn"])


def test_alarms(storage: dict[str, Resource]) -> None:
    alarms = {
        a["Properties"]["AlarmName"]: a["Properties"] for a in of(storage, "AWS::CloudWatch::Alarm").values()
    }
    assert set(alarms) == {
        f"planaria-demo-{name}"
        for name in ("scratch-export-lag", "scratch-export-errors", "checkpoint-age", "checkpoint-syncs")
    }
    fs, _ = made(storage, "scratch")
    lag = alarms["planaria-demo-scratch-export-lag"]
    assert (lag["Namespace"], lag["MetricName"]) == ("AWS/FSx", "AgeOfOldestQueuedMessage")
    assert {d["Name"]: d["Value"] for d in lag["Dimensions"]} == {
        "FileSystemId": {"Ref": fs}, "Publisher": "AutoExport",
    }  # fmt: skip
    assert (lag["Threshold"], lag["Statistic"]) == (45 * 60, "Maximum")
    age = alarms["planaria-demo-checkpoint-age"]
    assert (age["Namespace"], age["MetricName"], age["Threshold"]) == ("Planaria", "CheckpointAgeMinutes", 45)
    syncs = alarms["planaria-demo-checkpoint-syncs"]
    assert (syncs["MetricName"], syncs["Statistic"], syncs["Threshold"]) == (
        "CheckpointSyncFailures",
        "Sum",
        1,
    )
    for alarm in (age, syncs):
        assert alarm["Dimensions"] == [{"Name": "Cluster", "Value": "demo"}]
    for name, alarm in alarms.items():
        (action,) = alarm["AlarmActions"]
        assert text(action).endswith(":planaria-demo-notices"), name
        runbook = alarm["AlarmDescription"].partition("Runbook: ")[2]
        assert (app.ROOT / runbook).is_file(), runbook


def test_errors_of_exports_are_counted_from_fsxs_log(storage: dict[str, Resource]) -> None:
    (found,) = of(storage, "AWS::Logs::MetricFilter").values()
    properties = found["Properties"]
    (metric,) = properties["MetricTransformations"]
    alarm = next(
        a["Properties"]
        for a in of(storage, "AWS::CloudWatch::Alarm").values()
        if a["Properties"]["AlarmName"] == "planaria-demo-scratch-export-errors"
    )
    assert (metric["MetricNamespace"], metric["MetricName"]) == (alarm["Namespace"], alarm["MetricName"])
    assert '?"S3ExportAccessDenied"' in properties["FilterPattern"]
    (log,) = of(storage, "AWS::Logs::LogGroup").values()
    assert log["Properties"]["LogGroupName"] == "/aws/fsx/planaria-demo-scratch"


def test_nodes_are_told_what_to_mount(stored: Variant) -> None:
    (launch,) = stored.of("AWS::EC2::LaunchTemplate").values()
    script = user_data(launch["Properties"]["LaunchTemplateData"])
    facts = json.loads(next(line for line in script.splitlines() if line.startswith("{")))
    assert facts["mounts"] == ["/fsx", "/small", "/old"]
    outputs = template(stored)["Outputs"]
    mounts = {each["Description"]: text(each["Value"]) for each in outputs.values() if "Description" in each}
    for name in ("scratch", "small"):
        fs, _ = made(template(stored)["Resources"], name)
        said = f"What nodes mount as file system {name}"
        assert mounts.pop(said) == f"<{fs}.DNSName>@tcp:/<{fs}.LustreMountName>"
    assert mounts == {}


def test_the_lambdas_know_the_ids_and_what_they_may_do_with_them(stored: Variant) -> None:
    functions = stored.properties("AWS::Lambda::Function", "FunctionName")
    environment = functions["planaria-demo-start_sync"]["Environment"]["Variables"]
    ids = text(environment["PLANARIA_FILE_SYSTEMS"])
    assert ids.startswith('{"scratch":"<Planaria-demo-Storage:') and '"small":"<' in ids and "old" not in ids
    role = functions["planaria-demo-start_sync"]["Role"]["Fn::GetAtt"][0]
    found = {s["Sid"]: s for s in statements(stored.control["Resources"][role])}
    home = "arn:aws:fsx:us-east-1:<AWS::AccountId>"
    systems = [text(resource) for resource in found["TasksOf"]["Resource"]]
    assert len(systems) == 2, "the small one has no association"
    old, new = sorted(systems, key=lambda arn: not arn.endswith(OLD))
    assert old == f"{home}:file-system/{OLD}"
    assert new.startswith(f"{home}:file-system/<Planaria-demo-Storage:")
    assert found["NewTask"]["Condition"] == {"StringEquals": {"aws:RequestTag/planaria:cluster": "demo"}}
    assert found["CancelTask"]["Condition"] == {"StringEquals": {"aws:ResourceTag/planaria:cluster": "demo"}}
    kept = {text(resource).rpartition(">/")[2] for resource in found["WriteManifests"]["Resource"]}
    assert kept == {
        f"{place}/planaria-manifest.json"
        for place in (
            "checkpoints/*",
            "arn:aws:s3:::training-data/v1/*",
            "arn:aws:s3:::training-data/logs/*",
            "arn:aws:s3:::old-bucket/*",
        )
    }


def test_nodes_reach_checkpoints_and_transfers_and_no_row_of_others(stored: Variant) -> None:
    (role,) = (
        r
        for r in stored.of("AWS::IAM::Role").values()
        if r["Properties"].get("RoleName") == "planaria-demo-node"
    )
    found = {s["Sid"]: s for s in statements(role)}
    assert found["TransferRows"]["Action"] == ["dynamodb:GetItem", "dynamodb:Query", "dynamodb:UpdateItem"]
    assert found["TransferRows"]["Condition"] == {
        "ForAllValues:StringLike": {"dynamodb:LeadingKeys": "TRANSFER#*"},
        "Null": {"dynamodb:LeadingKeys": "false"},
    }
    assert [text(r).rpartition("/")[2] for r in found["TransferRows"]["Resource"]] != ["*"]
    places = {text(resource).rpartition(">/")[2] for resource in found["Checkpoints"]["Resource"]}
    assert {"checkpoints/*", "arn:aws:s3:::old-bucket/*"} <= places
    actions = {action for s in found.values() for action in s["Action"]}
    assert not [action for action in actions if "Delete" in action]
    listing = found["ListCheckpoints"]
    assert set(listing["Condition"]) == {"StringLikeIfExists"}, "or a missing object looks like a denied one"
    assert {"checkpoints/*", "transfers/*", "v1/*", "*"} <= set(
        listing["Condition"]["StringLikeIfExists"]["s3:prefix"]
    )


def test_checkpoints_are_copied_to_the_other_region_and_removals_are_not(stored: Variant) -> None:
    (bucket,) = (
        b for b in stored.of("AWS::S3::Bucket").values() if "ReplicationConfiguration" in b["Properties"]
    )
    copying = bucket["Properties"]["ReplicationConfiguration"]
    (rule,) = copying["Rules"]
    assert rule["Filter"] == {"Prefix": "checkpoints/"} and rule["Status"] == "Enabled"
    assert rule["DeleteMarkerReplication"] == {"Status": "Disabled"}
    assert rule["Destination"] == {"Bucket": "arn:aws:s3:::planaria-copies", "StorageClass": "STANDARD_IA"}
    role = copying["Role"]["Fn::GetAtt"][0]
    (policy,) = (
        p for p in stored.of("AWS::IAM::Policy").values() if {"Ref": role} in p["Properties"]["Roles"]
    )
    actions = {action for s in statements(policy) for action in s["Action"]}
    assert "s3:ReplicateObject" in actions and "s3:ReplicateDelete" not in actions
    there = [s for s in statements(policy) if "s3:ReplicateObject" in s["Action"]]
    assert [s["Resource"] for s in there] == [["arn:aws:s3:::planaria-copies/checkpoints/*"]]
    assert bucket["Properties"]["VersioningConfiguration"] == {"Status": "Enabled"}


def test_reports_and_plans_end_and_checkpoints_do_not(stored: Variant) -> None:
    (bucket,) = (
        b for b in stored.of("AWS::S3::Bucket").values() if "ReplicationConfiguration" in b["Properties"]
    )
    ends = {
        rule["Prefix"]: rule["ExpirationInDays"]
        for rule in bucket["Properties"]["LifecycleConfiguration"]["Rules"]
        if "ExpirationInDays" in rule
    }
    assert ends == {"events/": 90, "commands/": 7, "transfers/": 30, "checkpoints/.planaria-reports/": 90}


def test_the_stacks_pass_cfn_lint_and_cdk_nag(stored: Variant) -> None:
    report = json.loads((stored.folder / "validation-report.json").read_text())
    assert report["pluginReports"] == []
    files = list(stored.folder.glob("*.template.json"))
    assert {file.name.removesuffix(".template.json") for file in files} == {
        f"Planaria-demo-{stack}" for stack in ("State", "Storage", "Control", "Commands")
    }
    ours = [str(file) for file in files if "-Storage" in file.name or "-State" in file.name]
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run(
        [str(linter), "--template", *ours],
        cwd=app.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nag_would_see_an_open_group(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(STORED)
    bare = cdk.App(outdir=str(tmp_path / "out"), context=context(cluster=str(tmp_path / "cluster.yaml")))
    settings = app.settings_of(bare)
    assert settings.storage is not None
    from cdk_nag import AwsSolutionsChecks

    from infra.state_stack import State
    from infra.storage_stack import StorageStack

    stack = StorageStack(bare, "Storage", settings, State("t", "t-arn", "b", "arn:aws:s3:::b"))
    cdk.aws_ec2.CfnSecurityGroupIngress(
        stack, "Careless", ip_protocol="tcp", from_port=988, to_port=988, cidr_ip="0.0.0.0/0"
    )
    cdk.Validations.of(bare).add_plugins(AwsSolutionsChecks(bare))
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        bare.synth()


def test_the_sandbox_has_no_fsx(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(STORED)
    bare = cdk.App(context=context(cluster=str(tmp_path / "cluster.yaml"), **SANDBOX))
    state, _ = app.build(bare)
    assert sorted(each.node.id for each in bare.node.children if isinstance(each, cdk.Stack)) == [
        "Planaria-demo-Control",
        "Planaria-demo-State",
    ]
    buckets = [each for each in state.node.find_all() if isinstance(each, cdk.aws_s3.CfnBucket)]
    assert buckets and all(each.replication_configuration is None for each in buckets)
