"""NVIDIA's tools as the sandbox's nodes have them: a `dcgmi` that reads the node's device list.

It answers as DCGM does, so that the deep check reads the sandbox as it reads a GPU node.
"""

import json
import sys
from pathlib import Path

_BAD_GPU = 3
_SCRIPT = """#!{python}
import json, sys
with open({hardware!r}) as file:
    hardware = json.load(file)
gpus = range(hardware["gpus"]["seen"])
bad = hardware.get("bad") and {bad}
results = [
    {{"gpu_ids": str(n), "status": "Fail" if bad and n == bad else "Pass",
      **({{"warnings": "memory test: 1 row gave back other bits"}} if bad and n == bad else {{}})}}
    for n in gpus
]
tests = [{{"name": "GPU Memory", "results": results}}]
found = {{"test_categories": [{{"category": "Hardware", "tests": tests}}]}}
print(json.dumps({{"DCGM GPU Diagnostic": found}}))
"""


def write_tools(folder: Path, hardware: Path) -> None:
    """Put the tools of one node into its folder. hardware: its device list (node_process.NodePlace)."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _SCRIPT.format(python=sys.executable, hardware=str(hardware), bad=json.dumps(_BAD_GPU))
    path = folder / "dcgmi"
    scratch = folder / "dcgmi.tmp"
    scratch.write_text(text, encoding="utf-8")
    scratch.chmod(0o755)
    scratch.replace(path)
