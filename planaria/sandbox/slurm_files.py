"""The files of a Slurm on one machine without root: what slurmctld, slurmd and munged are told."""

import os
import pwd
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planaria.sandbox.errors import SandboxError
from planaria.sandbox.ports import is_free

LONGEST_SOCKET_PATH = 107  # bytes, unix(7)
LONGEST_STEP = len("4294967294.4294967294")
"""A job and a step, as slurmstepd writes them into the name of its socket."""

FIRST_PORT, LAST_PORT = 20_000, 32_000
"""Below the ephemeral range of Linux: a node that comes back finds its port as it left it."""

DISABLED_CGROUPS = (23, 11)
"""From this version on slurmd asks for cgroups by itself, and cgroup.conf can say that there are none."""


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """folder: everything is below it; its name may be as long as a Unix socket's allows. names: nodes that
    run from the start. spares: names that slurm.conf knows as FUTURE, which a replacement may take. gpus and
    cpus: of each node, whatever the machine has. options: of slurm.conf, in addition or instead. files: more
    files beside slurm.conf (topology.conf, say), by name."""

    folder: Path
    names: tuple[str, ...] = tuple(f"demo-{number}" for number in range(1, 9))
    spares: tuple[str, ...] = ()
    cluster: str = "planaria"
    gpus: int = 8
    cpus: int = 16
    options: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of a cluster are."""

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def key(self) -> Path:
        return self.folder / "run" / "munge.key"

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "munge.socket"

    def log(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.log"


def write(settings: SlurmSettings, version: tuple[int, int]) -> None:
    """All files of the cluster. version: of Slurm, such as (22, 5).

    Raises SandboxError when the folder's name is too long or no port is free.
    """
    folder = settings.folder
    most = max((len(f"/s/{name}/{name}_") for name in (*settings.names, *settings.spares)), default=0)
    if len(os.fsencode(folder)) + most + LONGEST_STEP > LONGEST_SOCKET_PATH:
        raise SandboxError(
            f"The name of {folder} is too long for Slurm's sockets; choose a folder of at most "
            f"{LONGEST_SOCKET_PATH - most - LONGEST_STEP} characters."
        )
    for name in ("run", "log", "state", "s", "gpus"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # Open to others, as munged and slurmd want it of the folders above their sockets; the key is not.
    folder.chmod(0o755)
    places = Places(folder)
    with os.fdopen(os.open(places.key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(secrets.token_bytes(1024))
    # A GPU of Slurm is a device file, and a container's /dev has few: all are other names of the one that
    # is everywhere.
    for number in range(settings.gpus):
        gpu = folder / "gpus" / f"gpu{number}"
        gpu.unlink(missing_ok=True)
        gpu.symlink_to(os.devnull)
    places.conf.write_text(slurm_conf(settings, free_ports(1 + len(settings.names) + len(settings.spares))))
    last = settings.gpus - 1
    gres = f"AutoDetect=off\nName=gpu File={folder}/gpus/gpu[0-{last}]\n" if settings.gpus else ""
    (folder / "gres.conf").write_text(gres)
    cgroup = "CgroupPlugin=disabled\n" if version >= DISABLED_CGROUPS else ""
    (folder / "cgroup.conf").write_text(cgroup)
    for name, text in settings.files.items():
        (folder / name).write_text(text)


def slurm_conf(settings: SlurmSettings, ports: list[int]) -> str:
    """The text of slurm.conf. ports: of slurmctld, then of each name and spare."""
    folder, user = settings.folder, _user()
    options = {
        "ClusterName": settings.cluster,
        "SlurmctldHost": f"{socket.gethostname().partition('.')[0]}(127.0.0.1)",
        "SlurmctldPort": str(ports[0]),
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={Places(folder).socket}",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/s/%n",
        "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/run/%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",
        "ReturnToService": "2",
        "MaxNodeCount": "64",
        "MailProg": "/bin/true",
        **({"GresTypes": "gpu"} if settings.gpus else {}),
        **settings.options,
    }
    lines = [f"{name}={value}" for name, value in options.items()]
    gres = f" Gres=gpu:{settings.gpus}" if settings.gpus else ""
    shape = f"CPUs={settings.cpus} Sockets=1 CoresPerSocket={settings.cpus} ThreadsPerCore=1{gres}"
    place = "NodeHostname=localhost NodeAddr=127.0.0.1"
    for name, port in zip((*settings.names, *settings.spares), ports[1:], strict=True):
        state = "FUTURE" if name in settings.spares else "UNKNOWN"
        lines.append(f"NodeName={name} {place} Port={port} {shape} State={state}")
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def free_ports(count: int) -> list[int]:
    """So many ports that nobody uses now. Two clusters that start at once look in different places."""
    found: list[int] = []
    candidate = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT - 10 * count)
    for port in range(candidate, LAST_PORT):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise SandboxError(f"There are no {count} free ports between {candidate} and {LAST_PORT}.")


def parse_version(text: str) -> tuple[int, int]:
    """`slurm-wlm 22.05.8` -> (22, 5)."""
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None:
        raise SandboxError(f"slurmctld -V did not answer with a version: {text.strip()[:100]!r}")
    return int(found[1]), int(found[2])


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's uid that has no name
        return str(os.getuid())
