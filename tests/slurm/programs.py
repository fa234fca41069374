"""Slurm's programs as recorded answers, for what the real one of this machine cannot show: other versions,
and answers that are cut."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from planaria.slurm.programs import Done, Slurm

ANSWERS = Path(__file__).with_name("answers")
JSON_VERSIONS = ("22.05", "23.02", "23.11", "24.05", "24.11", "25.05")

Change = Callable[[str], str]


class Recorded:
    """The answers of one version. orders: every call that would have changed something.

    with_json: False plays a Slurm that was built without it. cut: given what a program would print, returns
    what arrives. failing: program -> what it says instead, with exit status 1.
    """

    def __init__(self, version: str, with_json: bool = True) -> None:
        self.version = version
        self.with_json = with_json
        self.orders: list[tuple[str, ...]] = []
        self.cut: Change = str
        self.failing: dict[str, str] = {}
        self.reservations = "No reservations in the system\n"
        self.time = 1796071156.0

    @property
    def slurm(self) -> Slurm:
        return Slurm(self.run, lambda: self.time, self._sleep)

    def run(self, arguments: Sequence[str], seconds: float) -> Done:
        words = tuple(arguments)
        if words[0] in self.failing:
            return Done(1, "", self.failing[words[0]])
        if "update" in words or "create" in words or "delete" in words or words[0] == "scancel":
            self.orders.append(words)
            return Done(0, "", "")
        return self._answer(words)

    def _answer(self, words: tuple[str, ...]) -> Done:
        if words == ("scontrol", "--version"):
            return Done(0, f"slurm {self.version}.3\n", "")
        if "reservation" in words:
            return Done(0, self.cut(self.reservations), "")
        if "--json" in words and not self.with_json:
            return Done(1, "", f"{words[0]}: error: Unable to find plugin: serializer/json\n")
        if words[0] == "sinfo" or words[:3] == ("scontrol", "show", "node"):
            return self._file("nodes.json")
        if words[0] == "squeue" and "--json" in words:
            return self._file("jobs.json")
        if words[0] == "squeue" and "--format=%A|%T|%N|%D" in words:
            found = json.loads((ANSWERS / "22.05" / "jobs.json").read_text(encoding="utf-8"))["jobs"]
            lines = [f"{j['job_id']}|{j['job_state']}|{j['nodes']}|{j['node_count']}\n" for j in found]
            return Done(0, self.cut("".join(lines)), "")
        if words == ("scontrol", "show", "config"):
            return Done(0, "SlurmUser               = slurmadm(64030)\n", "")
        if words[:3] == ("scontrol", "--future", "--oneliner"):
            return self._nodes(words[5:])
        if words[:3] == ("scontrol", "--all", "--oneliner"):
            return self._file("scontrol_job.txt")
        raise AssertionError(f"nobody asks that: {' '.join(words)}")

    def _file(self, name: str) -> Done:
        return Done(0, self.cut((ANSWERS / self.version / name).read_text(encoding="utf-8")), "")

    def _nodes(self, names: Sequence[str]) -> Done:
        """The text form is that of 22.05; unknown nodes are told of on stdout, with status 1."""
        lines = (
            (ANSWERS / "22.05" / "scontrol_node.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        )
        shown = [line for line in lines if not names or line.split()[0].partition("=")[2] in names]
        if names and not shown:
            return Done(1, f"Node {names[0]} not found\n", "")
        return Done(0, self.cut("".join(shown)), "")

    def _sleep(self, seconds: float) -> None:
        self.time += seconds
