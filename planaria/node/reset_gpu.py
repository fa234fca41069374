"""Reset GPUs of this node, as a command.

    python -m planaria.node.reset_gpu [--pci 0000:17:00]

One GPU by its PCI address, or all of them. prints {"reason": str} as JSON: "" and status 0 when they were
reset, else why not and status 1. The driver refuses while a process holds the GPU, and so it should.
https://docs.nvidia.com/deploy/nvidia-smi/index.html (--gpu-reset)
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

TOOL = "nvidia-smi"
SECONDS = 600.0
_REASON_LENGTH = 300
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.[0-7])?")


def reset(pci: str, seconds: float = SECONDS) -> str:
    """Why the GPU at this address (all where it is "") could not be reset; "" when it was."""
    if pci and not _PCI.fullmatch(pci):
        return f"{pci!r:.40} is no PCI address such as 0000:17:00"
    tool = shutil.which(TOOL)
    if tool is None:
        return f"{TOOL} is not installed on this node"
    # The tool wants the function too, and a GPU is always function 0.
    named = ["--id", pci if "." in pci else f"{pci}.0"] if pci else []
    try:
        done = subprocess.run(
            [tool, "--gpu-reset", *named],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{TOOL} did not end within {seconds:.0f} s: the driver does not answer"
    except OSError as error:
        return f"{TOOL} cannot be run: {error.strerror}"
    if done.returncode == 0:
        return ""
    said = " ".join(f"{done.stdout} {done.stderr}".split())
    return f"{TOOL} ended with status {done.returncode}: {said or 'it said nothing'}"[:_REASON_LENGTH]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="planaria.node.reset_gpu", description="Reset GPUs of this node.", allow_abbrev=False
    )
    parser.add_argument("--pci", default="", help="the GPU's PCI address; without it all GPUs")
    reason = reset(parser.parse_args(arguments).pci)
    sys.stdout.write(json.dumps({"reason": reason}) + "\n")
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
