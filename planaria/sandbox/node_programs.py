"""A document that runs a program on a node, as the sandbox runs it: with the command line that SSM's agent
would run, in the node's process group and with the node's own credentials. What ends the node ends it."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from planaria.core.documents import Document
from planaria.sandbox.job_folder import read_json
from planaria.sandbox.node_process import NodeProcess, child_environment

NODE_FILE = "node.json"
"""In the sandbox's folder, as /etc/planaria/node.json on AWS: {"bucket", "table", "region"}."""

Result = dict[str, Any]


@dataclass(slots=True)
class Program:
    """One run. ended: its result, once it is there."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    ended: Result | None = field(default=None)

    def outcome(self) -> Result | None:
        """None while it is under way."""
        if self.ended is None and self.process.poll() is not None:
            self.ended = self._read()
        return self.ended

    def _read(self) -> Result:
        """The last line is the answer, in JSON."""
        self.output.seek(0)
        text = self.output.read().decode(errors="replace").strip()
        self.output.close()
        status = self.process.returncode
        try:
            told = json.loads(text.splitlines()[-1])
        except (ValueError, IndexError):
            told = {"reason": f"it ended with status {status}: {text[-300:]}"}
            status = status or 1
        return {"status": "FAILED" if status else "SUCCESS", "output": told}


def start(
    node: NodeProcess, document: Document, parameters: Mapping[str, str], folder: Path
) -> Program | Result:
    """folder: the sandbox's. -> the run, or its result where it could not be started. Raises InvalidInput
    for parameters that are none."""
    command = [sys.executable, *document.arguments(parameters)]
    leader = node.leader
    if leader is None:
        return failed(f"{node.instance_id} is not running")
    output = tempfile.TemporaryFile()  # noqa: SIM115  closed with the result
    try:
        process = subprocess.Popen(
            command,
            cwd=node.place.folder,
            env=child_environment() | dict(node.environment) | _where(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=leader,
        )
    except OSError as error:  # the node died this very moment
        output.close()
        return failed(f"{document.name} could not be started: {error.strerror}")
    # Whatever ends it, it is no zombie in the node's group while nobody asks.
    threading.Thread(target=process.wait, daemon=True, name=document.name).start()
    return Program(process, output)


def failed(reason: str) -> Result:
    return {"status": "FAILED", "output": {"reason": reason}}


def _where(folder: Path) -> dict[str, str]:
    """The names of the deployed stacks, which the node's launch template tells on AWS."""
    known = read_json(folder / NODE_FILE) or {}
    names = {"PLANARIA_BUCKET": "bucket", "PLANARIA_TABLE": "table", "AWS_REGION": "region"}
    return {name: str(known[key]) for name, key in names.items() if key in known} | {
        "PATH": os.environ.get("PATH", os.defpath)
    }
