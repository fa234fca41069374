"""The CDK app. Context alone differs between AWS and the sandbox; docs/iam.md explains what it may do.

    cluster      path of the cluster file, from the repository's root
    gameday      "true" lets game days play AWS on Planaria's own bus
    time_scale   all durations are multiplied by this number (1 on AWS)
    sandbox      "true" for the local emulator; then also sandbox_url and sandbox_token
    nag          "true" checks the app with cdk-nag's AwsSolutions rules

Never calls AWS and needs no credentials.
"""

import sys
from pathlib import Path

import aws_cdk as cdk

from infra import placement_stack, ssm_documents
from infra.assets import AssetError
from infra.control_stack import ControlStack
from infra.placement_stack import PlacementStack
from infra.settings import NodeGroup, Reservation, Sandbox, Settings, Storage
from infra.ssm_documents import CommandsStack
from infra.state_stack import StateStack
from infra.storage_stack import StorageStack
from infra.suppressions import accept_plain_http
from planaria.core.errors import InvalidInput
from planaria.recipes import ClusterFile
from planaria.recipes import NodeGroup as GroupInFile

ROOT = Path(__file__).resolve().parent


def settings_of(app: cdk.App, root: Path = ROOT) -> Settings:
    """Read the context and the cluster file. Raises InvalidInput."""
    path = _text(app, "cluster")
    cluster = ClusterFile.load(root / path)
    time_scale = _number(app, "time_scale")
    groups = tuple(
        NodeGroup(
            name=group.name,
            template=cluster.launch_template(group),
            image=group.launch.image,
            subnets=group.launch.subnets,
            security_groups=group.launch.security_groups,
            key=group.launch.key,
            root_device=group.launch.root_device,
            root_gib=group.launch.root_gib,
            reservations=_reservations(cluster, group),
            placement_group=group.placement_group,
            efa=group.efa,
        )
        for group in cluster.node_groups
    )
    return Settings(
        root=root,
        cluster=cluster.name,
        region=cluster.region,
        document=cluster.document(time_scale),
        node_groups=groups,
        warnings=tuple(cluster.warnings()),
        gameday=_flag(app, "gameday"),
        time_scale=time_scale,
        sandbox=_sandbox(app),
        storage=_storage(cluster),
    )


def build(app: cdk.App, root: Path = ROOT) -> tuple[StateStack, ControlStack]:
    """Add the stacks to the app; that of the SSM documents where there are any. -> the first two.

    Raises InvalidInput, AssetError or ValueError with a sentence.
    """
    settings = settings_of(app, root)
    common = {"env": cdk.Environment(region=settings.region), "tags": {"planaria:cluster": settings.cluster}}

    def synthesizer() -> cdk.IStackSynthesizer:
        # The emulator's IAM knows no bootstrap roles to assume: assets go up with the caller's credentials.
        return cdk.CliCredentialsStackSynthesizer() if settings.sandbox else cdk.DefaultStackSynthesizer()

    name = f"Planaria-{settings.cluster}"
    state = StateStack(app, f"{name}-State", settings, synthesizer=synthesizer(), **common)
    placement = None
    if placement_stack.wanted(settings):
        placement = PlacementStack(app, f"{name}-Placement", settings, synthesizer=synthesizer(), **common)
    storage = None
    if settings.storage is not None and settings.sandbox is None:  # the emulator has no FSx
        storage = StorageStack(
            app, f"{name}-Storage", settings, state.exports, synthesizer=synthesizer(), **common
        )
        storage.add_stack_dependency(state)
    control = ControlStack(
        app,
        f"{name}-Control",
        settings,
        state.exports,
        placement.exports if placement is not None else {},
        storage.exports if storage is not None else {},
        synthesizer=synthesizer(),
        **common,
    )
    control.add_stack_dependency(state)
    if placement is not None:
        control.add_stack_dependency(placement)
    if storage is not None:
        control.add_stack_dependency(storage)
    if ssm_documents.names(settings):
        commands = CommandsStack(app, f"{name}-Commands", settings, synthesizer=synthesizer(), **common)
        control.add_stack_dependency(commands)  # a function must not send what is not there yet
    for number, warning in enumerate(settings.warnings):
        cdk.Annotations.of(control).add_warning_v2(f"planaria:cluster-file-{number}", warning)
    if not settings.tls_only:
        accept_plain_http(state)
        accept_plain_http(control)
    if _flag(app, "nag"):
        from cdk_nag import AwsSolutionsChecks  # a second to load

        cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    return state, control


def _reservations(cluster: ClusterFile, group: GroupInFile) -> tuple[Reservation, ...]:
    """Each once, in the order of the offerings."""
    named = {o.reservation: o.capacity for o in group.offerings if o.reservation is not None}
    within = {o.reservation for o in group.offerings if o.placement_group}
    return tuple(
        Reservation(
            name, cluster.reserved_template(group, name), capacity == "capacity-block", name in within
        )
        for name, capacity in named.items()
    )


def _storage(cluster: ClusterFile) -> Storage | None:
    if cluster.checkpoints is None:
        return None
    clients = dict.fromkeys(sg for group in cluster.node_groups for sg in group.launch.security_groups)
    return Storage.of(cluster.checkpoints.resources(), tuple(clients))


def _sandbox(app: cdk.App) -> Sandbox | None:
    if not _flag(app, "sandbox"):
        return None
    return Sandbox(_text(app, "sandbox_url"), _text(app, "sandbox_token"))


def _text(app: cdk.App, key: str) -> str:
    value = app.node.try_get_context(key)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"The context {key} is missing; give it with -c {key}=...")
    return value


def _flag(app: cdk.App, key: str) -> bool:
    value = str(app.node.try_get_context(key) or "false").lower()
    if value not in ("true", "false"):
        raise InvalidInput(f"The context {key} must be true or false, not {value}.")
    return value == "true"


def _number(app: cdk.App, key: str) -> float:
    value = app.node.try_get_context(key) or 1
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number <= 1:
        raise InvalidInput(f"The context {key} must be a number above 0 and at most 1, not {value}.")
    return number


def main() -> None:
    app = cdk.App()
    try:
        build(app)
    except (InvalidInput, AssetError, ValueError) as error:
        sys.exit(str(error))
    app.synth()


if __name__ == "__main__":
    main()
