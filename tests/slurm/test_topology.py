"""The verb `topology` on the head node: programs that say what a test has them say, then the real Slurm."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lambdas import slurm_topology
from planaria.core.cluster import Slurm as SlurmSection
from planaria.core.documents import documents
from planaria.core.topology import Path as Place
from planaria.core.topology_conf import MARK, UNKNOWN_SWITCH, packed
from planaria.memory.clock import MemoryClock
from planaria.memory.table import MemoryTable
from planaria.sandbox.local_commands import LocalCommands
from planaria.sandbox.slurm_cluster import SlurmCluster
from planaria.sandbox.slurm_files import SlurmSettings
from planaria.slurm import hostlist, topology
from planaria.slurm.command_line import main
from planaria.slurm.programs import Done, Slurm, SlurmError, Unreadable
from planaria.wiring import Gateways
from tests.lambdas.world import cluster
from tests.sandbox.heads import eventually

NEAR, FAR = ("nn-1", "nn-2", "nn-4"), ("nn-1", "nn-3", "nn-5")
PLACES: dict[str, Place] = {"demo-1": NEAR, "demo-2": NEAR, "demo-3": FAR}
FLAGS = "KeepPartInfo,KeepPartState"
CONFIG = "Configuration data as of x\nReconfigFlags = {}\nSLURM_CONF = {}/slurm.conf\nTopologyPlugin = {}\n"
NODE = "NodeName={0} Arch=x86 NodeAddr={1} NodeHostName=ip-{1} Reason=a NodeName=b NodeAddr=c\n"
BY_HAND = "SwitchName=mine Nodes=demo-[1-4]\n"
NAMES = tuple(f"demo-{number}" for number in range(1, 5))


class Controller:
    """slurmctld as far as the verb sees it: it shows what it has read last.

    refuses: a word of a file that it does not take; it shows what it had. deaf: it does not read at all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plugin, self.flags, self.nodes = "topology/tree", FLAGS, list(NAMES)
        self.read = ""
        self.refuses, self.deaf = "", False
        self.addresses: dict[str, str] = {}
        self.calls: list[tuple[str, ...]] = []
        self.file = folder / topology.FILE

    def run(self, arguments: Sequence[str], seconds: float) -> Done:
        self.calls.append(tuple(arguments[1:]))
        match arguments[1:]:
            case ["show", "config"]:
                return Done(0, CONFIG.format(self.flags, self.folder, self.plugin), "")
            case ["--oneliner", "--future", "show", "node"]:
                lines = (NODE.format(name, self.addresses.get(name, name)) for name in self.nodes)
                return Done(0, "".join(lines), "")
            case ["update", node, address, host]:
                assert host.removeprefix("NodeHostname=ip-") == address.removeprefix("NodeAddr=")
                self.addresses[node.removeprefix("NodeName=")] = address.removeprefix("NodeAddr=")
                return Done(0, "", "")
            case ["reconfigure"]:
                if self.deaf:
                    return Done(1, "", "slurm_reconfigure error: Unable to contact slurm controller\n")
                self.addresses.clear()  # as slurm.conf has them
                text = self.file.read_text() if self.file.exists() else ""
                if not (self.refuses and self.refuses in text):
                    self.read = text
                return Done(0, "", "")
            case ["show", "topology"]:
                return Done(0, self._shown(), "")
        raise AssertionError(f"nobody asks that: {arguments}")

    def _shown(self) -> str:
        lines = []
        for line in self.read.splitlines():
            if " Nodes=" in line:
                name, _, nodes = line.removeprefix("SwitchName=").partition(" Nodes=")
                lines.append(f"SwitchName={name} Level=0 LinkSpeed=1 Nodes={nodes}")
            elif " Switches=" in line:
                name = line.removeprefix("SwitchName=").partition(" ")[0]
                lines.append(f"SwitchName={name} Level=1 LinkSpeed=1 Nodes=demo-[1-4] Switches=x")
        return "\n".join(lines) + "\n"

    @property
    def slurm(self) -> Slurm:
        return Slurm(self.run, sleep=lambda _: None)


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


def test_the_file_is_written_read_and_proven(controller: Controller) -> None:
    found = topology.install(controller.slurm, PLACES)
    assert found == {
        "installed": True, "changed": True, "switches": 7, "nodes": 4, "unknown": ["demo-4"],
        "unknown_count": 1, "reason": "",
    }  # fmt: skip
    text = controller.file.read_text()
    assert text.startswith(MARK) and f"SwitchName={UNKNOWN_SWITCH} Nodes=demo-4" in text
    assert controller.read == text
    assert controller.file.stat().st_mode & 0o777 == 0o644
    assert not (controller.folder / topology.FORMER).exists()


def test_asked_twice_nothing_is_written_nor_read_again(controller: Controller) -> None:
    topology.install(controller.slurm, PLACES)
    controller.calls.clear()
    found = topology.install(controller.slurm, PLACES)
    assert (found["installed"], found["changed"]) == (True, False)
    assert ("reconfigure",) not in controller.calls


def test_a_file_that_slurmctld_has_not_read_is_read_now(controller: Controller) -> None:
    """An earlier call died between the two."""
    topology.install(controller.slurm, PLACES)
    text, controller.read = controller.file.read_text(), BY_HAND
    found = topology.install(controller.slurm, PLACES)
    assert (found["installed"], found["changed"]) == (True, False) and controller.read == text
    assert not (controller.folder / topology.FORMER).exists(), "it would be no former one"


def test_the_former_file_is_kept_with_its_mode(controller: Controller) -> None:
    controller.file.write_text(BY_HAND)
    controller.file.chmod(0o640)
    assert topology.install(controller.slurm, PLACES)["installed"] is True
    assert (controller.folder / topology.FORMER).read_text() == BY_HAND
    assert controller.file.stat().st_mode & 0o777 == 0o640


def test_addresses_that_replacements_have_brought_outlive_the_reconfiguration(controller: Controller) -> None:
    controller.addresses = {"demo-2": "10.0.0.9"}
    assert topology.install(controller.slurm, PLACES)["installed"] is True
    assert controller.addresses == {"demo-2": "10.0.0.9"}
    controller.refuses = "nn-7"
    found = topology.install(controller.slurm, {**PLACES, "demo-4": ("nn-1", "nn-3", "nn-7")})
    assert found["installed"] is False and controller.addresses == {"demo-2": "10.0.0.9"}


def test_what_slurmctld_does_not_take_is_taken_back(controller: Controller) -> None:
    controller.file.write_text(BY_HAND)
    controller.read, controller.refuses = BY_HAND, "nn-4"
    found = topology.install(controller.slurm, PLACES)
    assert (found["installed"], found["changed"]) == (False, False)
    assert "slurmctld shows another topology than the file" in found["reason"]
    assert "the former file is back" in found["reason"]
    assert controller.file.read_text() == controller.read == BY_HAND


def test_where_there_was_no_file_there_is_none_again(controller: Controller) -> None:
    controller.refuses = "nn-4"
    found = topology.install(controller.slurm, PLACES)
    assert found["installed"] is False and not controller.file.exists()


def test_a_controller_that_does_not_answer_gets_its_file_back(
    controller: Controller,
) -> None:
    controller.file.write_text(BY_HAND)
    controller.deaf = True
    found = topology.install(controller.slurm, PLACES)
    assert found["reason"].startswith("slurmctld did not read its files again: ")
    assert "but slurmctld did not read its files again" in found["reason"]
    assert controller.file.read_text() == BY_HAND


@pytest.mark.parametrize("plugin", ["topology/none", "topology/block", "topology/flat"])
def test_another_plugin_is_left_to_whoever_chose_it(controller: Controller, plugin: str) -> None:
    controller.plugin = plugin
    found = topology.install(controller.slurm, PLACES)
    assert found["installed"] is False and not controller.file.exists()
    assert found["reason"].startswith(f"TopologyPlugin is {plugin}; set it to topology/tree in slurm.conf")


def test_topology_yaml_goes_before_and_is_not_ours(controller: Controller) -> None:
    (controller.folder / "topology.yaml").write_text("---\n")
    found = topology.install(controller.slurm, PLACES)
    assert "topology.yaml goes before topology.conf" in found["reason"] and not controller.file.exists()


def test_nodes_of_others_are_in_the_file_and_ours_that_slurm_has_not_are_not(controller: Controller) -> None:
    controller.nodes = ["demo-1", "cpu-7"]
    found = topology.install(controller.slurm, PLACES)
    assert found["unknown"] == ["cpu-7"]
    assert "demo-2" not in controller.file.read_text()


def test_a_file_behind_a_link_is_written_where_it_is(controller: Controller, tmp_path: Path) -> None:
    there = tmp_path / "shared"
    there.mkdir()
    (there / "topo").write_text(BY_HAND)
    controller.file.symlink_to(there / "topo")
    assert topology.install(controller.slurm, PLACES)["installed"] is True
    assert controller.file.is_symlink() and (there / "topo").read_text().startswith(MARK)


def test_a_folder_that_cannot_be_written_is_said(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    found = topology.install(controller.slurm, PLACES)
    assert found["reason"].endswith("topology.conf cannot be written: No space left on device")
    assert [path.name for path in controller.folder.iterdir()] == [".topology.conf.lock"]


@pytest.mark.parametrize(
    ("text", "error"),
    [("", Unreadable), ("TopologyPlugin = topology/tree\n", Unreadable)],
)
def test_an_answer_that_cannot_be_read_writes_nothing(
    controller: Controller, text: str, error: type[SlurmError]
) -> None:
    def run(arguments: Sequence[str], seconds: float) -> Done:
        return Done(0, text or CONFIG.format(FLAGS, controller.folder, topology.PLUGIN), "")

    with pytest.raises(error):
        topology.install(Slurm(run), PLACES)
    assert not controller.file.exists()


def test_the_command_line_answers_in_one_line(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = documents()["planaria-slurm-topology"].arguments({"Paths": packed(PLACES)})
    assert arguments[:3] == ["-m", "planaria.slurm", "topology"]
    assert main(arguments[2:], controller.slurm) == 0
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and json.loads(line)["value"]["installed"] is True
    assert main(["topology", "--paths=AAAA"], controller.slurm) == 0
    assert "the list of places cannot be read" in json.loads(capsys.readouterr().out)["error"]


# --- the real one ----------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    settings = SlurmSettings(
        tmp_path_factory.mktemp("s"),
        NAMES,
        spares=("demo-9",),
        options={"TopologyPlugin": "topology/tree", "ReconfigFlags": FLAGS},
        files={topology.FILE: BY_HAND},
    )
    with SlurmCluster(settings) as slurm:
        for name, value in slurm.environment.items():
            monkeypatch.setenv(name, value)
        yield slurm


def shown(slurm: SlurmCluster) -> dict[str, list[str]]:
    return {
        switch: sorted(hostlist.expand(listed))
        for switch, level, listed in topology._SWITCH.findall(slurm.run("scontrol", "show", "topology"))
        if level == "0"
    }


@pytest.mark.campaign
@pytest.mark.needs("slurm")
def test_the_real_slurmctld_works_by_the_file(real: SlurmCluster) -> None:
    found = topology.install(Slurm(), PLACES)
    assert (found["installed"], found["changed"], found["reason"]) == (True, True, "")
    assert found["unknown"] == ["demo-4", "demo-9"], "a name that nobody bears yet has its switch too"
    unknown = {UNKNOWN_SWITCH: ["demo-4", "demo-9"]}
    assert shown(real) == {"nn-4": ["demo-1", "demo-2"], "nn-5": ["demo-3"]} | unknown
    assert topology.install(Slurm(), PLACES)["changed"] is False


@pytest.mark.campaign
@pytest.mark.needs("slurm")
def test_the_real_slurmctld_places_jobs_by_it(real: SlurmCluster) -> None:
    """Two nodes below one switch, whichever Slurm would have taken by their order; and across the root."""
    places: dict[str, Place] = {"demo-1": NEAR, "demo-2": FAR, "demo-3": FAR}
    assert topology.install(Slurm(), places)["installed"] is True
    real.run("scontrol", "update", "NodeName=demo-4", "State=DRAIN", "Reason=test")
    assert "demo-[2-3]" in real.run("srun", "--nodes=2", "--immediate=30", "printenv", "SLURM_JOB_NODELIST")
    real.run("scontrol", "update", "NodeName=demo-4", "State=RESUME")
    assert "demo-[1-4]" in real.run("srun", "--nodes=4", "--immediate=30", "printenv", "SLURM_JOB_NODELIST")


@pytest.mark.campaign
@pytest.mark.needs("slurm")
def test_the_real_slurmctld_keeps_the_address_of_a_replacement(real: SlurmCluster) -> None:
    def address() -> str:
        text = real.run("scontrol", "--oneliner", "show", "node", "demo-2")
        return " ".join(word for word in text.split() if word.startswith(("NodeAddr=", "NodeHostName=")))

    real.run("scontrol", "update", "NodeName=demo-2", "NodeAddr=127.0.0.9", "NodeHostname=ip-127-0-0-9")
    moved = address()
    real.run("scontrol", "reconfigure")
    assert address() != moved, "or the verb need not care"
    real.run("scontrol", "update", "NodeName=demo-2", "NodeAddr=127.0.0.9", "NodeHostname=ip-127-0-0-9")
    assert topology.install(Slurm(), PLACES)["installed"] is True
    assert address() == moved == "NodeAddr=127.0.0.9 NodeHostName=ip-127-0-0-9"


@pytest.mark.campaign
@pytest.mark.needs("slurm")
def test_the_real_slurmctld_keeps_what_an_operator_has_changed(real: SlurmCluster) -> None:
    """A partition that is closed for a maintenance, and a node's weight and features."""

    def words(*what: str) -> list[str]:
        text = real.run("scontrol", "--oneliner", "show", *what)
        wanted = ("State=", "MaxTime=", "Weight=", "AvailableFeatures=", "ActiveFeatures=")
        return [word for word in text.split() if word.startswith(wanted)]

    partition = real.run("sinfo", "--noheader", "--format=%R").split()[0]
    real.run("scontrol", "update", f"PartitionName={partition}", "State=DRAIN", "MaxTime=60")
    features = ("AvailableFeatures=old,new", "ActiveFeatures=old")
    real.run("scontrol", "update", "NodeName=demo-2", "Weight=77", *features)
    before = words("partition"), words("node", "demo-2")
    assert "State=DRAIN" in before[0] and "Weight=77" in before[1]
    assert topology.install(Slurm(), PLACES)["installed"] is True
    assert (words("partition"), words("node", "demo-2")) == before


@pytest.mark.parametrize("flags", ["(null)", "KeepPartState", "KeepPartInfo"])
def test_where_closed_partitions_would_be_opened_nothing_is_read(controller: Controller, flags: str) -> None:
    controller.flags = flags
    found = topology.install(controller.slurm, PLACES)
    assert found["installed"] is False and "ReconfigFlags=KeepPartInfo,KeepPartState" in found["reason"]
    assert not controller.file.exists() and ("reconfigure",) not in controller.calls


@pytest.mark.campaign
@pytest.mark.needs("slurm")
def test_a_running_job_does_not_notice_and_a_moved_name_does(real: SlurmCluster) -> None:
    topology.install(Slurm(), PLACES)
    job = real.run("sbatch", "--parsable", "--nodes=2", "--wrap", "sleep 60").strip()

    def facts() -> str:
        return real.run("scontrol", "show", "job", job)

    eventually(lambda: "JobState=RUNNING" in facts(), 30, f"job {job} to run")
    found = topology.install(Slurm(), {**PLACES, "demo-2": FAR})
    assert found["changed"] is True and shown(real)["nn-5"] == ["demo-2", "demo-3"]
    assert "JobState=RUNNING" in facts() and "Restarts=0" in facts()
    real.run("scancel", job)


@pytest.mark.campaign
@pytest.mark.needs("slurm")
def test_the_real_slurmctld_gone_leaves_the_former_file(real: SlurmCluster) -> None:
    """What ends slurmctld (a fault in the file, or something else at that moment) must not be there when it
    is started again."""
    text, conf = real.settings.folder / topology.FILE, real.places.conf
    slurm = Slurm()

    def run(arguments: Sequence[str], seconds: float) -> Done:
        if arguments[1] == "reconfigure":  # its answer never comes: it has ended over the file
            subprocess.run(["scontrol", "shutdown", "slurmctld"], check=False, capture_output=True)
            conf.write_text(f"{conf.read_text()}MessageTimeout=2\n")  # of those that ask it in vain
        return slurm.run(arguments, seconds)

    found = topology.install(Slurm(run, sleep=lambda _: None), PLACES)
    assert found["installed"] is False and "the former file is back" in found["reason"]
    assert text.read_text() == BY_HAND


@pytest.mark.campaign
@pytest.mark.needs("slurm")
def test_from_sweep_to_the_real_slurmctld(real: SlurmCluster) -> None:
    """What the ledger knows of the places is what slurmctld works by, through the document's command line."""
    head = "i-0cccccccccccccccc"
    gw = Gateways({}, dataclasses.replace(cluster(), slurm=SlurmSection(head, "tree")))
    gw.table, gw.clock = MemoryTable(), MemoryClock()
    commands = LocalCommands(real.environment)
    gw.commands = commands
    try:
        for number, (name, place) in enumerate(PLACES.items()):
            known = {"name": name, "state": "running", "topology": list(place)}
            gw.ledger.note_node(f"i-{number:017x}", known)
        assert slurm_topology.keep(gw, gw.ledger.nodes()) == 1

        def installed() -> bool:
            slurm_topology.keep(gw, gw.ledger.nodes())
            return "installed" in (gw.table.get(*slurm_topology.KEY) or {})

        eventually(installed, 30, "the head node's answer")
        assert shown(real)["nn-4"] == ["demo-1", "demo-2"]
        # A replacement takes the name, somewhere else.
        gw.ledger.note_node(f"i-{1:017x}", {"replaced_by": "i-new"})
        new: dict[str, Any] = {"state": "running", "topology": list(FAR), "admitted_at": 5.0}
        gw.ledger.note_node("i-new", {"name": "demo-2", "replaces": f"i-{1:017x}", **new})
        assert slurm_topology.keep(gw, gw.ledger.nodes()) == 1

        def moved() -> bool:
            slurm_topology.keep(gw, gw.ledger.nodes())
            row = gw.table.get(*slurm_topology.KEY) or {}
            return "ticket" not in row and row["installed"] == row["asked"]

        eventually(moved, 30, "the second answer")
        assert shown(real)["nn-5"] == ["demo-2", "demo-3"]
    finally:
        commands.close()
