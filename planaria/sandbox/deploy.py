"""Deploy this repository's CDK app to the emulator: with the real CDK CLI, or the fast way for tests."""

import concurrent.futures
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from planaria.sandbox import processes
from planaria.sandbox.emulator import ACCOUNT, REGION, Emulator
from planaria.sandbox.errors import SandboxError

ROOT = Path(__file__).resolve().parents[2]

Progress = Callable[[str], None]
"""Is told what happens, a few words at a time, for a line on the screen."""

STACK_SECONDS = 120.0
_EVENT = re.compile(r"^(\S+) \|\s*(\d+)/(\d+) \|")
_PLAIN = ("--ci", "--no-color", "--no-notices", "--no-version-reporting")
_TIMING = re.compile(r"^\W*(Synthesis|Deployment|Total) time")


def quiet(_: str) -> None:
    """A Progress that shows nothing."""


def sandbox_context(
    url: str,
    token: str,
    *,
    cluster: str = "recipes/clusters/demo.yaml",
    time_scale: float = 1.0,
    gameday: bool = True,
) -> dict[str, str]:
    """The CDK context that makes the app the sandbox's.

    url and token: of the head's local API. cluster: path of the cluster file from the repository's root.
    """
    return {
        "sandbox": "true",
        "sandbox_url": url,
        "sandbox_token": token,
        "cluster": cluster,
        "time_scale": f"{time_scale:g}",
        "gameday": "true" if gameday else "false",
    }


def synthesize(
    out: Path, context: Mapping[str, str], *, root: Path = ROOT, progress: Progress = quiet
) -> Path:
    """Run app.py and return `out`, the cloud assembly, made anew.

    Raises SandboxError with what app.py said.
    """
    if not (root / "app.py").exists():
        raise SandboxError(
            f"The sandbox deploys the CDK app of a clone of the repository; {root} has no app.py."
        )
    progress("synthesising the CDK app")
    defaults = json.loads((root / "cdk.json").read_text(encoding="utf-8"))["context"]
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    variables = {
        "CDK_OUTDIR": str(out),
        "CDK_CONTEXT_JSON": json.dumps(defaults | dict(context)),
        "CDK_DEFAULT_ACCOUNT": ACCOUNT,
        "CDK_DEFAULT_REGION": REGION,
    }
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="synth-") as scratch:
        try:
            _run([sys.executable, "app.py"], root, _variables(Path(scratch)) | variables, "app.py", quiet)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
    return out


def deploy(
    emulator: Emulator, context: Mapping[str, str], *, root: Path = ROOT, progress: Progress = quiet
) -> dict[str, dict[str, str]]:
    """Bootstrap the emulator where needed and `cdk deploy --all` to it.

    Returns the outputs by stack and key. The assembly stays in `cdk.out` in the emulator's folder.
    Raises SandboxError with the last lines of what failed.
    """
    cdk = _cdk(root)
    assembly = emulator.folder / "cdk.out"
    outputs = emulator.folder / "outputs.json"
    with tempfile.TemporaryDirectory(dir=emulator.folder, prefix="cdk-") as scratch:
        variables = _variables(Path(scratch)) | emulator.environment()
        with concurrent.futures.ThreadPoolExecutor(1) as beside:
            bootstrapped = beside.submit(_bootstrap, emulator, cdk, Path(scratch), variables)
            synthesize(assembly, context, root=root, progress=progress)
            bootstrapped.result()
        progress("deploying with the CDK CLI")
        command = [cdk, "deploy", "--all", "--app", str(assembly), "--require-approval", "never"]
        command += ["--progress", "events", "--outputs-file", str(outputs), *_PLAIN]
        _run(command, root, variables, "cdk deploy", progress)
    found: dict[str, dict[str, str]] = json.loads(outputs.read_text(encoding="utf-8"))
    return found


def deploy_direct(
    emulator: Emulator, assembly: Path, *, progress: Progress = quiet
) -> dict[str, dict[str, str]]:
    """Create the stacks of a cloud assembly through CloudFormation alone, without CDK CLI or bootstrap.

    For tests: one `synthesize` serves many emulators. Returns the outputs by stack and key; raises
    SandboxError with the reason of the first resource that failed.
    """
    from botocore.exceptions import ClientError

    manifest = json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))
    artifacts: dict[str, dict[str, Any]] = manifest["artifacts"]
    stacks = {k: v for k, v in artifacts.items() if v["type"] == "aws:cloudformation:stack"}
    s3, cloudformation = emulator.client("s3"), emulator.client("cloudformation")
    outputs: dict[str, dict[str, str]] = {}
    for name in _in_order(stacks):
        progress(f"creating {name}")
        for dependency in stacks[name].get("dependencies", []):
            if artifacts[dependency]["type"] == "cdk:asset-manifest":
                _publish(s3, assembly, artifacts[dependency]["properties"]["file"])
        properties = stacks[name]["properties"]
        template = _concrete(properties["stackTemplateAssetObjectUrl"]).removeprefix("s3://")
        try:
            cloudformation.create_stack(
                StackName=name,
                TemplateURL=f"{emulator.url}/{template}",
                Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
                Tags=[{"Key": key, "Value": value} for key, value in properties.get("tags", {}).items()],
            )
        except ClientError as error:
            said = error.response["Error"]["Message"]
            raise SandboxError(f"{name} could not be created: {said}") from None
        outputs[name] = _created(cloudformation, name)
    return outputs


def _cdk(root: Path) -> str:
    own = root / "node_modules" / ".bin" / "cdk"
    if own.exists():
        return str(own)
    if found := shutil.which("cdk"):
        return found
    raise SandboxError(f"The CDK CLI is missing; `make setup` or `npm ci` in {root} installs it.")


def _variables(scratch: Path) -> dict[str, str]:
    """The environment of CDK runs: Node.js of the virtual environment, nothing of the user's AWS settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CDK_", "JSII_"))}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "TMPDIR": str(scratch),
        "CDK_HOME": str(scratch / "cdk"),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "JSII_SILENCE_WARNING_DEPRECATED_NODE_VERSION": "1",
        "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1",
        "JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION": "1",
    }


def _run(
    command: list[str], folder: Path, variables: Mapping[str, str], title: str, progress: Progress
) -> None:
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    said: list[str] = []
    shown = ""
    with process:
        try:
            for line in process.stdout or ():
                if event := _EVENT.match(line):
                    news = f"{event[1]}: {event[2]} of {event[3]} resources"
                    if news != shown:
                        shown = news
                        progress(news)
                elif line.strip() and not _TIMING.match(line):
                    said.append(line.rstrip())
            code = process.wait()
        except BaseException:
            processes.end_group(process.pid)
            raise
    if code != 0:
        text = "\n".join(said[-12:])
        if "ENOSPC" in text or "No space left on device" in text:
            raise SandboxError("The disk is full; free some space and try again.")
        if title == "app.py" and len(said) == 1:
            raise SandboxError(said[0])
        raise SandboxError(f"{title} failed; its last lines:\n{text}")


def _bootstrap(emulator: Emulator, cdk: str, scratch: Path, variables: Mapping[str, str]) -> None:
    """`cdk bootstrap`, unless the emulator's account is bootstrapped."""
    from botocore.exceptions import ClientError

    try:
        emulator.client("cloudformation").describe_stacks(StackName="CDKToolkit")
    except ClientError:
        # From an empty folder: beside a cdk.json the CLI would synthesise the app first, for nothing.
        empty = scratch / "empty"
        empty.mkdir()
        command = [cdk, "bootstrap", f"aws://{ACCOUNT}/{REGION}", *_PLAIN]
        _run(command, empty, variables, "cdk bootstrap", quiet)


def _in_order(stacks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Names of the stacks, each after those it depends on."""
    done: set[str] = set()

    def walk(name: str) -> Iterator[str]:
        if name in stacks and name not in done:
            done.add(name)
            for dependency in stacks[name].get("dependencies", []):
                yield from walk(dependency)
            yield name

    for name in stacks:
        yield from walk(name)


def _publish(s3: Any, assembly: Path, manifest: str) -> None:
    files = json.loads((assembly / manifest).read_text(encoding="utf-8"))["files"]
    for file in files.values():
        source = assembly / file["source"]["path"]
        body = _zipped(source) if file["source"]["packaging"] == "zip" else source.read_bytes()
        for destination in file["destinations"].values():
            bucket = _concrete(destination["bucketName"])
            s3.create_bucket(Bucket=bucket)
            s3.put_object(Bucket=bucket, Key=_concrete(destination["objectKey"]), Body=body)


def _zipped(folder: Path) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder).as_posix())
    return memory.getvalue()


def _concrete(text: str) -> str:
    return (
        text.replace("${AWS::AccountId}", ACCOUNT)
        .replace("${AWS::Region}", REGION)
        .replace("${AWS::Partition}", "aws")
    )


def _created(cloudformation: Any, name: str) -> dict[str, str]:
    """Wait for the stack and return its outputs."""
    deadline = time.monotonic() + STACK_SECONDS
    while time.monotonic() < deadline:
        stack = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
        if stack["StackStatus"] == "CREATE_COMPLETE":
            return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
        if not stack["StackStatus"].endswith("CREATE_IN_PROGRESS"):
            events = cloudformation.describe_stack_events(StackName=name)["StackEvents"]
            failed = [event for event in events if event["ResourceStatus"] == "CREATE_FAILED"]
            first = failed[-1] if failed else {"LogicalResourceId": name}
            reason = first.get("ResourceStatusReason") or stack.get(
                "StackStatusReason", "no reason was given"
            )
            raise SandboxError(f"{name} could not be created: {first['LogicalResourceId']}: {reason}")
        time.sleep(0.1)
    raise SandboxError(f"{name} was not created within {STACK_SECONDS:.0f} s.")
