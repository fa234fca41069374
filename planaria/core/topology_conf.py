"""Slurm's files about the network, from where the nodes are: topology.conf, as a tree or as blocks, and
topology.yaml.

    SwitchName=nn-0a Switches=nn-0b,nn-0c       topology/tree: every network node is a switch
    SwitchName=nn-0b Nodes=gpu-[1-8]
    BlockName=nn-0b Nodes=gpu-[1-8]             topology/block (23.11 on): those of the lowest layer alone

Nodes whose place is unknown hang on a switch of their own below the root, as far from all others as the
tree goes: Slurm never starts a job on a node that no switch reaches. slurmctld ends at once when it reads
a file that is no tree, so `problems` looks for that before anybody installs one.
https://slurm.schedmd.com/topology.conf.html · https://slurm.schedmd.com/topology.yaml.html (25.05 on)
"""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from planaria.core.errors import InvalidInput
from planaria.core.topology import UNKNOWN, Path, path_of

ROOT, UNKNOWN_SWITCH = "planaria-root", "planaria-unknown"

MARK = "# Written by Planaria from EC2's network topology; changes by hand are overwritten."

MOST_BYTES = 8 * 2**20
"""Of a packed list once it is unpacked: 65,536 nodes fit."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LINE = re.compile(r"SwitchName=(\S+) (Nodes|Switches)=(\S+)")

Hosts = Callable[[Iterable[str]], str]
"""Names -> one comma list, in Slurm's brackets where the caller knows how."""


@dataclass(frozen=True, slots=True)
class Switch:
    """It has nodes or switches below it, not both."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


def tree(nodes: Mapping[str, Path]) -> list[Switch]:
    """Every switch once, the root first and each before those below it. nodes: Slurm's name -> its
    place."""
    leaves: dict[Path, list[str]] = {}
    for name, path in sorted(nodes.items(), key=lambda item: _natural(item[0])):
        leaves.setdefault(path, []).append(name)
    unknown = leaves.pop(UNKNOWN, [])
    prefixes = {path[:depth] for path in leaves for depth in range(1, len(path) + 1)}
    names = _names(prefixes)
    below: dict[Path, list[Path]] = {}
    for prefix in sorted(prefixes):
        below.setdefault(prefix[:-1], []).append(prefix)
    found: list[Switch] = []

    def add(prefix: Path) -> None:
        direct, children = tuple(leaves.get(prefix, ())), below.get(prefix, [])
        if not children:
            found.append(Switch(names[prefix], nodes=direct))
            return
        # Types of four layers hang one below those of three: Slurm's switches have either.
        own = (f"{names[prefix]}-nodes",) if direct else ()
        found.append(Switch(names[prefix], switches=(*(names[child] for child in children), *own)))
        found.extend(Switch(name, nodes=direct) for name in own)
        for child in children:
            add(child)

    tops = below.get((), [])
    if len(tops) + bool(unknown) > 1:
        under = (*(names[top] for top in tops), *((UNKNOWN_SWITCH,) if unknown else ()))
        found.append(Switch(ROOT, switches=under))
    for top in tops:
        add(top)
    if unknown:
        found.append(Switch(UNKNOWN_SWITCH, nodes=tuple(unknown)))
    return found


def blocks(nodes: Mapping[str, Path]) -> list[Switch]:
    """The network nodes of the lowest layer, each with its nodes."""
    return [switch for switch in tree(nodes) if switch.nodes]


# --- as text ---------------------------------------------------------------------------------------------


def tree_conf(switches: Sequence[Switch], hosts: Hosts = ",".join) -> str:
    """topology.conf for TopologyPlugin=topology/tree."""
    lines = [f"SwitchName={s.name} {_children(s, 'Nodes', 'Switches', hosts)}" for s in switches]
    return "\n".join([MARK, *lines]) + "\n"


def block_conf(found: Sequence[Switch], sizes: Sequence[int] = (), hosts: Hosts = ",".join) -> str:
    """topology.conf for TopologyPlugin=topology/block. sizes: BlockSizes, by default the smallest block's:
    no block may have fewer nodes than the first of them."""
    lines = [f"BlockName={block.name} Nodes={hosts(block.nodes)}" for block in found]
    numbers = ",".join(map(str, sizes or _smallest(found)))
    return "\n".join([MARK, *lines, f"BlockSizes={numbers}"]) + "\n"


def yaml_text(
    nodes: Mapping[str, Path], kind: str, sizes: Sequence[int] = (), hosts: Hosts = ",".join
) -> str:
    """topology.yaml with one topology. kind: tree or block. Every value is quoted, for YAML takes some bare
    names for numbers."""
    lines = [MARK, "---", f"- topology: {kind}", "  cluster_default: true", f"  {kind}:"]
    if kind == "tree":
        lines.append("    switches:")
        for switch in tree(nodes):
            word, value = _children(switch, "nodes", "children", hosts).split("=", 1)
            lines += [f"      - switch: {json.dumps(switch.name)}", f"        {word}: {json.dumps(value)}"]
    elif kind == "block":
        found = blocks(nodes)
        lines += [
            "    block_sizes:",
            *(f"      - {size}" for size in sizes or _smallest(found)),
            "    blocks:",
        ]
        for block in found:
            value = json.dumps(hosts(block.nodes))
            lines += [f"      - block: {json.dumps(block.name)}", f"        nodes: {value}"]
    else:
        raise InvalidInput(f"a topology is of kind tree or block, not {kind!r:.40}")
    return "\n".join(lines) + "\n"


def _children(switch: Switch, of_nodes: str, of_switches: str, hosts: Hosts) -> str:
    if switch.nodes:
        return f"{of_nodes}={hosts(switch.nodes)}"
    return f"{of_switches}={','.join(switch.switches)}"


def _smallest(found: Sequence[Switch]) -> tuple[int, ...]:
    return (min(len(block.nodes) for block in found),) if found else (1,)


# --- before it is installed ------------------------------------------------------------------------------


def problems(text: str, nodes: Iterable[str], expand: Callable[[str], list[str]]) -> list[str]:
    """Why slurmctld would not take this topology.conf, one sentence each. nodes: all that Slurm has.

    expand: a list as `hosts` wrote it -> names.
    """
    found: list[str] = []
    children: dict[str, list[str]] = {}
    leaf_of: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or not _NAME.fullmatch(match[1]):
            found.append(f"line {number} is no switch: {line[:60]!r}")
            continue
        name, kind, listed = match.groups()
        if name in children:
            found.append(f"the switch {name} is there twice")
        children[name] = listed.split(",") if kind == "Switches" else []
        for node in expand(listed) if kind == "Nodes" else ():
            if node in leaf_of:
                found.append(f"the node {node} is below {leaf_of[node]} and below {name}")
            leaf_of[node] = name
    parents: dict[str, str] = {}
    for name, below in children.items():
        for child in below:
            if child not in children:
                found.append(f"{name} has {child} below it, which is nowhere")
            if child in parents:
                found.append(f"{child} is below {parents[child]} and below {name}")
            parents[child] = name
    roots = [name for name in children if name not in parents]
    if children and len(roots) != 1:
        found.append(f"{len(roots)} switches have none above them, so no job could use nodes of both")
    missing = sorted(set(nodes) - set(leaf_of))
    if missing:
        found.append(f"no switch reaches {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    return found


# --- between a Lambda and the head node ------------------------------------------------------------------


def packed(nodes: Mapping[str, Path]) -> str:
    """The places of nodes in characters that no shell and no pattern minds; the same places, the same
    text."""
    leaves: dict[str, list[str]] = {}
    for name, path in sorted(nodes.items()):
        leaves.setdefault("/".join(path), []).append(name)
    raw = json.dumps(leaves, sort_keys=True, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.compress(raw, 9)).decode()


def unpacked(text: str) -> dict[str, Path]:
    """Raises InvalidInput for anything that `packed` does not make."""
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.b64decode(text, altchars=b"-_", validate=True), MOST_BYTES)
        leaves = json.loads(raw) if inflate.eof else None
    except (binascii.Error, zlib.error, ValueError):
        leaves = None
    if not isinstance(leaves, dict):
        raise InvalidInput("the list of places cannot be read: it was cut, or was not made by this release")
    found: dict[str, Path] = {}
    for joined, names in leaves.items():
        path = path_of(joined.split("/")) if joined else UNKNOWN
        if not isinstance(names, list) or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
            raise InvalidInput(f"the list of places has no list of nodes at {joined[:60]!r}")
        found |= dict.fromkeys(names, path)
    return found


def _names(prefixes: Iterable[Path]) -> dict[Path, str]:
    """Each network node's own name; where that is no name for Slurm, or not the only one, a number is
    added."""
    taken, names = {ROOT, UNKNOWN_SWITCH}, dict[Path, str]()
    for prefix in sorted(prefixes):
        plain = re.sub(r"[^A-Za-z0-9_.-]", "-", prefix[-1]).lstrip("_.-") or "switch"
        name, number = plain, 2
        while name in taken or name.endswith("-nodes"):
            name, number = f"{plain}-{number}", number + 1
        taken.add(name)
        names[prefix] = name
    return names


def _natural(name: str) -> list[tuple[int, str]]:
    """gpu-2 before gpu-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]
