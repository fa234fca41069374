"""What Slurm says of its nodes, whichever version it is."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planaria.slurm import json_form, marks, reasons, states, text_form
from planaria.slurm.programs import Slurm, SlurmError, Unreadable

SHOW_NODE_JSON = (23, 2)
"""From this release on `scontrol show node` speaks JSON; `sinfo --json` lists no single nodes later on."""

FEW = 8

TEXT_KEYS = (
    *(
        "NodeName",
        "Arch",
        "CoresPerSocket",
        "NodeAddr",
        "NodeHostName",
        "State",
        "ThreadsPerCore",
        "Partitions",
    ),
    *(
        "BootTime",
        "CfgTRES",
        "OS",
        "Gres",
        "Reason",
        "Comment",
        "Extra",
        "Owner",
        "Weight",
        "AvailableFeatures",
        "CPUTot",
        "RealMemory",
    ),
)

NOT_REGISTERED = "INVALID_REG"
"""It has less than slurm.conf says (sinfo: inval): no work, whether it is drained for that as well or not."""

DIGITS = re.compile(r"(\d+)")

WRITTEN_BY = re.compile(r"(.*) \[([^\[\]@]*)@(\d+)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Node:
    """One node. reason_at: epoch seconds, 0 where Slurm does not say; by_slurm: the reason was written by a
    user that Slurm itself runs as; mark: our token in its comment."""

    name: str
    words: states.Words
    reason: str = ""
    reason_by: str = ""
    reason_at: int = 0
    address: str = ""
    hostname: str = ""
    comment: str = ""
    partitions: tuple[str, ...] = ()
    by_slurm: bool = True
    gres: str = ""
    features: frozenset[str] = frozenset()
    cpus: int = 0
    memory: int = 0

    def stands_in_for(self, other: "Node") -> bool:
        """It has at least what the other one has: devices, features, CPUs and memory."""
        same = self.gres == other.gres and self.features >= other.features
        return same and self.cpus >= other.cpus and self.memory >= other.memory

    @property
    def mark(self) -> dict[str, str]:
        return marks.read(self.comment)

    @property
    def kept_out(self) -> bool:
        """No new work here: drained, failing, or set down."""
        return self.words.held or self.words.down

    @property
    def by_itself(self) -> bool:
        """Slurm keeps work off this node by its own word: something has failed, and nobody wants it so."""
        out = self.kept_out or NOT_REGISTERED in self.words.flags
        return out and self.words.clear and self.by_slurm and reasons.is_slurms(self.reason)

    @property
    def foreign(self) -> str:
        """Why somebody else keeps work off this node; "" where nobody does.

        Down without a reason is how a node that has never registered looks; drained without one is a line in
        slurm.conf, and a person wrote that; but Slurm drops the reason of a FUTURE node when it registers,
        and our note stays.
        """
        if not self.kept_out or reasons.is_ours(self.reason):
            return ""
        if reasons.is_slurms(self.reason) and self.by_slurm:
            return ""
        if not self.reason:
            unknown = self.words.held and not reasons.is_ours(self.mark.get("reason", ""))
            return "drained without a reason" if unknown else ""
        return self.reason


def read(slurm: Slurm, names: Iterable[str]) -> dict[str, Node]:
    """Those of the names that Slurm knows. Raises SlurmError; a node that is there is never left out."""
    asked = list(dict.fromkeys(names))
    if not asked:
        return {}
    known = _every(slurm, asked)
    return {name: known[name] for name in asked if name in known}


def every(slurm: Slurm) -> dict[str, Node]:
    """All nodes of the cluster."""
    return _every(slurm, ())


def _every(slurm: Slurm, asked: Sequence[str]) -> dict[str, Node]:
    """At least those of the asked nodes that exist; without any asked: all nodes."""
    return _authors(slurm, _known(slurm, asked))


def _authors(slurm: Slurm, found: dict[str, Node]) -> dict[str, Node]:
    """Slurm's own words count as such only from a user that Slurm runs as: a person may write them, too."""
    doubtful = [
        node
        for node in found.values()
        if reasons.is_slurms(node.reason) and node.reason_by not in ("", "root", "slurm")
    ]
    if not doubtful:
        return found
    user = re.search(r"^SlurmUser\s*=\s*([^\s(]+)", slurm.ask("scontrol", "show", "config"), re.MULTILINE)
    persons = {node.name for node in doubtful if user is None or node.reason_by != user[1]}
    return {name: replace(node, by_slurm=name not in persons) for name, node in found.items()}


def _known(slurm: Slurm, asked: Sequence[str]) -> dict[str, Node]:
    try:
        found = _by_json(slurm, asked)
    except SlurmError as error:
        if isinstance(error, Unreadable) or not no_json(error):
            raise
        return _by_text(slurm, asked)
    unseen = [name for name in asked if name not in found]
    # `sinfo --json` of 22.05 leaves out nodes in state FUTURE, which Slurm knows all the same.
    return {**found, **_by_text(slurm, unseen)} if unseen else found


def no_json(error: SlurmError) -> bool:
    """This Slurm was built without JSON, or is older than that."""
    return (
        re.search(r"json|serializer|unrecognized option|invalid option", error.said, re.IGNORECASE)
        is not None
    )


def _by_json(slurm: Slurm, asked: Sequence[str]) -> dict[str, Node]:
    if slurm.version() < SHOW_NODE_JSON:
        printed, what = slurm.ask("sinfo", "--json"), "the answer of `sinfo --json`"
    else:
        # A list with one unknown name fails as a whole in some releases: all nodes, and the choice is ours.
        names = asked if len(asked) == 1 else ()
        try:
            printed = slurm.ask("scontrol", "show", "node", *names, "--json")
        except SlurmError as error:
            if names and _not_found(error.said):
                return {}
            raise
        what = "the answer of `scontrol show node --json`"
        if names and _nothing_but_not_found(printed):
            return {}
    return {
        node.name: node for node in (_from_json(row, what) for row in json_form.rows(printed, "nodes", what))
    }


def _from_json(row: dict[str, Any], what: str) -> Node:
    name = json_form.text(row, "name")
    if not name or not json_form.words(row, "state"):
        raise Unreadable(f"{what} has a node without a name or a state")
    return Node(
        name,
        states.parse(json_form.words(row, "state"), json_form.words(row, "state_flags")),
        json_form.text(row, "reason"),
        json_form.text(row, "reason_set_by_user"),
        json_form.number(row, "reason_changed_at") or 0,
        json_form.text(row, "address"),
        json_form.text(row, "hostname"),
        json_form.text(row, "comment"),
        tuple(json_form.words(row, "partitions")),
        gres=_devices(json_form.text(row, "gres")),
        features=_set(json_form.text(row, "features")),
        cpus=json_form.number(row, "cpus") or 0,
        memory=json_form.number(row, "real_memory") or 0,
    )


def _by_text(slurm: Slurm, asked: Sequence[str]) -> dict[str, Node]:
    """By `scontrol --future`, which shows nodes that are configured for later, too."""
    shown: dict[str, Node] = {}
    # One by one, for of a list with an unknown name some releases show nothing; of many, all nodes at once.
    groups: list[tuple[str, ...]] = [(name,) for name in asked] if len(asked) <= FEW else []
    groups = groups or [()]
    for names in groups:
        try:
            printed = slurm.ask("scontrol", "--future", "--oneliner", "show", "node", *names)
        except SlurmError as error:
            if names and _not_found(error.said):
                continue
            raise
        for line in printed.splitlines():
            if line.strip() and not _not_found(line):
                node = _from_text(line)
                shown[node.name] = node
    return shown


def _from_text(line: str) -> Node:
    what = "the answer of `scontrol show node`"
    row = text_form.fields(line, TEXT_KEYS, ("NodeName", "State", "CfgTRES"), what)
    said = WRITTEN_BY.fullmatch(row.get("Reason", ""))
    reason, by, at = (said[1], said[2], int(said[3])) if said else (row.get("Reason", ""), "", 0)
    return Node(
        row["NodeName"],
        states.parse(row["State"]),
        reason,
        by,
        at,
        row.get("NodeAddr", ""),
        row.get("NodeHostName", ""),
        row.get("Comment", ""),
        tuple(part for part in row.get("Partitions", "").split(",") if part),
        gres=_devices(row.get("Gres", "")),
        features=_set(row.get("AvailableFeatures", "")),
        cpus=_int(row.get("CPUTot", "")),
        memory=_int(row.get("RealMemory", "")),
    )


def _devices(text: str) -> str:
    """Without the sockets they hang at: `gpu:h100:8(S:0-1)` is `gpu:h100:8`."""
    return re.sub(r"\([^)]*\)", "", text)


def _set(text: str) -> frozenset[str]:
    return frozenset(part for part in text.split(",") if part)


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _not_found(said: str) -> bool:
    return re.search(r"\bnot found\b|Invalid node name", said) is not None


def _nothing_but_not_found(printed: str) -> bool:
    """23.02 and later tell of an unknown node inside a JSON answer of no nodes, or in plain words."""
    return (
        len(printed) < 4000 and _not_found(printed) and '"name"' not in printed.replace('"name": "Slurm', "")
    )
