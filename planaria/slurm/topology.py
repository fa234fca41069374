"""The verb `topology`: EC2's network into Slurm's topology.conf, and slurmctld told of it.

Every node that Slurm has is in the file, also those of which nothing is known: Slurm starts no job on a
node that no switch reaches. slurmctld ends when it reads a file that is no tree, so the text is proven
before it is installed; then it is renamed into place, read by `scontrol reconfigure`, and compared with
what slurmctld shows. Where that is not the same, the former file comes back. It is kept beside it as
topology.conf.former.

A reconfiguration also puts back to what slurm.conf says whatever `scontrol update` has changed since:
partitions (one that an operator has closed is open again), and of nodes the address that `join` has brought,
weight and features. So it is done only where ReconfigFlags keeps the partitions, and those words of the nodes
are read before and written back after it.

Slurm must use topology/tree already (TopologyPlugin in slurm.conf, which takes a restart and is not changed
here); topology.yaml goes before topology.conf in newer releases, so where it is there nothing is written.
"""

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planaria.core import topology_conf
from planaria.core.topology import UNKNOWN
from planaria.core.topology import Path as Place
from planaria.slurm import hostlist
from planaria.slurm.programs import Slurm, SlurmError, Unreadable

FILE = "topology.conf"
FORMER = f"{FILE}.former"
PLUGIN = "topology/tree"

SHOWN_TRIES = 10
"""slurmctld reads its files while it goes on answering: so often, with half a second between."""

SHOWN_UNKNOWN = 20
_SETTING = re.compile(r"^(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)
_NODE = re.compile(r"^NodeName=(\S+)", re.MULTILINE)
KEEPS = frozenset({"KeepPartInfo", "KeepPartState"})

KEPT = {
    "NodeAddr": "NodeAddr",
    "NodeHostName": "NodeHostname",
    "Weight": "Weight",
    "AvailableFeatures": "AvailableFeatures",
    "ActiveFeatures": "ActiveFeatures",
}
"""What a reconfiguration puts back of a node: the word that is shown -> the one that is written."""

_NODES = ("scontrol", "--oneliner", "--future", "show", "node")
"""With those in state FUTURE: a replacement may take one of these names at any time."""
_SWITCH = re.compile(r"SwitchName=(\S+)\s+Level=(\d+)\s.*?Nodes=(\S+)")


def install(slurm: Slurm, places: Mapping[str, Place]) -> dict[str, Any]:
    """{"installed", "changed", "switches", "nodes", "unknown": [names], "unknown_count", "reason"}.

    installed: slurmctld works by it; else `reason` says why not. Raises SlurmError where Slurm does not
    answer.
    """
    settings = dict(_SETTING.findall(slurm.ask("scontrol", "show", "config")))
    if settings.get("TopologyPlugin") != PLUGIN:
        found = settings.get("TopologyPlugin", "unknown")
        return _refused(f"TopologyPlugin is {found}; set it to {PLUGIN} in slurm.conf and restart slurmctld")
    if "SLURM_CONF" not in settings:
        raise Unreadable("`scontrol show config` does not say where slurm.conf is")
    folder = Path(settings["SLURM_CONF"]).parent
    if (folder / "topology.yaml").exists():
        return _refused(f"{folder / 'topology.yaml'} goes before {FILE}, so {FILE} is not written")
    if lacking := sorted(KEEPS - set(settings.get("ReconfigFlags", "").split(","))):
        return _refused(
            f"ReconfigFlags has no {' and no '.join(lacking)}, so reading {FILE} would open partitions that "
            f"an operator has closed; set ReconfigFlags={','.join(sorted(KEEPS))} in slurm.conf"
        )
    nodes = _NODE.findall(slurm.ask(*_NODES))
    if not nodes:
        raise Unreadable("`scontrol show node` named no node")
    wanted = {name: places.get(name, UNKNOWN) for name in nodes}
    switches = topology_conf.tree(wanted)
    text = topology_conf.tree_conf(switches, hostlist.compress)
    if wrong := topology_conf.problems(text, nodes, hostlist.expand):
        return _refused(f"the network is no tree: {wrong[0]}")
    unknown = sorted(name for name, place in wanted.items() if not place)
    try:
        changed, reason = _into_place(slurm, (folder / FILE).resolve(), text)
    except OSError as error:
        return _refused(f"{folder / FILE} cannot be written: {error.strerror}")
    return {
        "installed": not reason,
        "changed": changed,
        "switches": len(switches),
        "nodes": len(nodes),
        "unknown": unknown[:SHOWN_UNKNOWN],
        "unknown_count": len(unknown),
        "reason": reason,
    }


def _refused(reason: str) -> dict[str, Any]:
    empty = {"installed": False, "changed": False, "switches": 0, "nodes": 0}
    return {**empty, "unknown": [], "unknown_count": 0, "reason": reason}


def _into_place(slurm: Slurm, file: Path, text: str) -> tuple[bool, str]:
    """(was the file changed?, why slurmctld does not work by it; "" when it does)."""
    with _alone(file):
        former = file.read_text(encoding="utf-8", errors="surrogateescape") if file.exists() else None
        if former == text and not _differs(slurm, text, tries=1):
            return False, ""
        kept = _kept(slurm)
        if former is not None and former != text:
            _write(file.with_name(FORMER), former, like=file)
        _write(file, text, like=file)
        why = _read(slurm, text, kept)
        if not why:
            return former != text, ""
        if former is None:
            file.unlink()
        else:
            _write(file, former, like=file)
        back = _read(slurm, "", kept)
        return False, f"{why}; the former file is back{f', but {back}' if back else ''}"


def _read(slurm: Slurm, text: str, kept: Mapping[str, Mapping[str, str]]) -> str:
    """Have slurmctld read its files. Why that did not work, "" when it did.

    text: what it is to show then. kept: of the nodes, as they were before.
    """
    try:
        slurm.ask("scontrol", "reconfigure", seconds=30.0)
    except SlurmError as error:
        return f"slurmctld did not read its files again: {error}"
    why = _differs(slurm, text, SHOWN_TRIES) if text else ""
    lost = _put_back(slurm, kept)
    return "; ".join(sentence for sentence in (why, lost) if sentence)


def _kept(slurm: Slurm) -> dict[str, dict[str, str]]:
    """node -> {a key of KEPT: what slurmctld shows}. A node's own text stands last in its line."""
    found = {}
    for line in slurm.ask(*_NODES).splitlines():
        if (name := _NODE.match(line)) is not None:
            words = {word: re.search(rf" {word}=(\S+)", line) for word in KEPT}
            found[name[1]] = {word: match[1] for word, match in words.items() if match is not None}
    return found


def _put_back(slurm: Slurm, kept: Mapping[str, Mapping[str, str]]) -> str:
    """Why a node is not again as it was, "" when all are."""
    try:
        now = _kept(slurm)
        for name, words in kept.items():
            changed = {w: v for w, v in words.items() if name in now and now[name].get(w, v) != v}
            if changed:
                values = {word: "" if value == "(null)" else value for word, value in changed.items()}
                changes = [f"{KEPT[word]}={value}" for word, value in values.items()]
                slurm.ask("scontrol", "update", f"NodeName={name}", *changes)
    except SlurmError as error:
        return f"what the reconfiguration put back to slurm.conf's could not be restored: {error}"
    return ""


def _differs(slurm: Slurm, text: str, tries: int) -> str:
    """What slurmctld shows other than this text, "" when nothing."""
    wanted = _leaves(text)
    said = ""
    for number in range(tries):
        if number:
            slurm.sleep(0.5)
        try:
            shown = _shown(slurm.ask("scontrol", "show", "topology"))
        except SlurmError as error:
            said = f"slurmctld does not show its topology: {error}"
            continue
        if shown == wanted:
            return ""
        odd = sorted(set(shown.items()) ^ set(wanted.items()))
        said = f"slurmctld shows another topology than the file, first at switch {odd[0][0]}"
    return said


def _leaves(text: str) -> dict[str, frozenset[str]]:
    found = re.findall(r"^SwitchName=(\S+) Nodes=(\S+)$", text, re.MULTILINE)
    return {switch: frozenset(hostlist.expand(listed)) for switch, listed in found}


def _shown(text: str) -> dict[str, frozenset[str]]:
    """The switches of the lowest level; those above them show the nodes of all below."""
    return {
        switch: frozenset(hostlist.expand(listed))
        for switch, level, listed in _SWITCH.findall(text)
        if level == "0"
    }


def _write(file: Path, text: str, like: Path) -> None:
    """Whole or not at all, with the owner and mode of the file that was there."""
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as new:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
            stat = like.stat() if like.exists() else file.parent.stat()
            os.fchmod(new.fileno(), stat.st_mode & 0o777 if like.exists() else 0o644)
            with contextlib.suppress(PermissionError):
                os.fchown(new.fileno(), stat.st_uid, stat.st_gid)
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """One writer at a time: SSM runs five commands at once."""
    with file.with_name(f".{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
