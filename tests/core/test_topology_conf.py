"""topology.conf and topology.yaml, written from where the nodes are."""

import base64
import itertools
import zlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planaria.core.errors import InvalidInput
from planaria.core.topology import UNKNOWN, Path
from planaria.core.topology_conf import (
    MARK,
    ROOT,
    UNKNOWN_SWITCH,
    Switch,
    block_conf,
    blocks,
    packed,
    problems,
    tree,
    tree_conf,
    unpacked,
    yaml_text,
)
from planaria.slurm.hostlist import compress, expand

NODES: dict[str, Path] = {
    "gpu-1": ("nn-a", "nn-b", "nn-d"), "gpu-2": ("nn-a", "nn-b", "nn-d"), "gpu-10": ("nn-a", "nn-b", "nn-d"),
    "gpu-3": ("nn-a", "nn-b", "nn-e"), "gpu-4": ("nn-a", "nn-c", "nn-f"),
}  # fmt: skip

layer = st.sampled_from(["0b5", "nn-1", "x y", "-nodes", "a-nodes", "planaria-root", "8"])
named = st.sampled_from([*(f"gpu-{number}" for number in range(12)), "login", "a1-b2"])
places = st.dictionaries(named, st.lists(layer, max_size=4).map(tuple), max_size=10)


def test_a_tree_has_a_switch_for_every_network_node() -> None:
    text = tree_conf(tree(NODES), compress)
    assert text.splitlines() == [
        MARK,
        "SwitchName=nn-a Switches=nn-b,nn-c",
        "SwitchName=nn-b Switches=nn-d,nn-e",
        "SwitchName=nn-d Nodes=gpu-[1-2],gpu-10",
        "SwitchName=nn-e Nodes=gpu-3",
        "SwitchName=nn-c Switches=nn-f",
        "SwitchName=nn-f Nodes=gpu-4",
    ]


def test_unknown_nodes_are_below_a_switch_of_their_own_and_a_root_joins_all() -> None:
    found = tree({**NODES, "login": UNKNOWN, "cpu-1": UNKNOWN})
    assert found[0] == Switch(ROOT, switches=("nn-a", UNKNOWN_SWITCH))
    assert found[-1] == Switch(UNKNOWN_SWITCH, nodes=("cpu-1", "login"))


def test_nothing_known_is_one_switch_and_nothing_at_all_is_none() -> None:
    assert tree({"n1": UNKNOWN, "n2": UNKNOWN}) == [Switch(UNKNOWN_SWITCH, nodes=("n1", "n2"))]
    assert tree({}) == []


def test_two_tops_are_joined() -> None:
    found = tree({"n1": ("a", "b", "c"), "n2": ("d", "e", "f")})
    assert found[0] == Switch(ROOT, switches=("a", "d"))


def test_nodes_of_three_and_of_four_layers_share_no_switch() -> None:
    found = {switch.name: switch for switch in tree({"p5": ("a", "b", "c"), "p6": ("a", "b", "c", "d")})}
    assert found["c"] == Switch("c", switches=("d", "c-nodes"))
    assert found["c-nodes"].nodes == ("p5",) and found["d"].nodes == ("p6",)


def test_a_name_at_two_places_is_two_switches() -> None:
    found = tree({"n1": ("a", "x", "l"), "n2": ("b", "x", "l")})
    names = [switch.name for switch in found]
    assert len(names) == len(set(names)) and "x-2" in names and "l-2" in names


@given(places)
def test_slurmctld_would_take_any_tree(nodes: dict[str, Path]) -> None:
    text = tree_conf(tree(nodes), compress)
    assert problems(text, nodes, expand) == []
    listed = [node for switch in tree(nodes) for node in switch.nodes]
    assert sorted(listed) == sorted(nodes)


@given(places, st.randoms())
def test_the_order_of_the_nodes_changes_nothing(nodes: dict[str, Path], random: object) -> None:
    items = list(nodes.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert tree(dict(items)) == tree(nodes) and packed(dict(items)) == packed(nodes)


TWICE = ["SwitchName=r Switches=a,b", "SwitchName=a Switches=c", "SwitchName=b Switches=c"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["SwitchName=a Switches=b"], "a has b below it, which is nowhere"),
        (["SwitchName=a Nodes=n1", "SwitchName=a Nodes=n2"], "the switch a is there twice"),
        (["SwitchName=a Nodes=n1", "SwitchName=b Nodes=n2"], "2 switches have none above them"),
        (["SwitchName=a Switches=b", "SwitchName=b Switches=a"], "0 switches have none above them"),
        (["SwitchName=a Nodes=n1"], "no switch reaches n2"),
        (["SwitchName=a Nodes=n[1-2]", "hello"], "line 2 is no switch: 'hello'"),
        (["SwitchName=a Nodes=n1", "SwitchName=b Nodes=n[1-2]"], "n1 is below a and below b"),
        (["SwitchName=a Nodes=n[1-2] Switches=b"], "line 1 is no switch"),
        ([*TWICE, "SwitchName=c Nodes=n[1-2]"], "c is below a and below b"),
    ],
)
def test_what_slurmctld_would_end_over_is_found(lines: list[str], says: str) -> None:
    found = problems("\n".join(lines) + "\n", ["n1", "n2"], expand)
    assert any(says in sentence for sentence in found), found


def test_blocks_are_the_lowest_layer_and_the_smallest_gives_the_size() -> None:
    lines = block_conf(blocks(NODES), hosts=compress).splitlines()
    assert lines == [
        MARK,
        "BlockName=nn-d Nodes=gpu-[1-2],gpu-10",
        "BlockName=nn-e Nodes=gpu-3",
        "BlockName=nn-f Nodes=gpu-4",
        "BlockSizes=1",
    ]
    assert block_conf(blocks(NODES), (2, 4)).endswith("BlockSizes=2,4\n")


def test_the_yaml_of_a_tree_is_what_slurm_reads() -> None:
    (found,) = yaml.safe_load(yaml_text({**NODES, "login": UNKNOWN}, "tree", hosts=compress))
    assert (found["topology"], found["cluster_default"]) == ("tree", True)
    switches = {entry["switch"]: entry for entry in found["tree"]["switches"]}
    assert switches[ROOT] == {"switch": ROOT, "children": f"nn-a,{UNKNOWN_SWITCH}"}
    assert switches["nn-d"] == {"switch": "nn-d", "nodes": "gpu-[1-2],gpu-10"}
    assert switches[UNKNOWN_SWITCH]["nodes"] == "login"


def test_the_yaml_of_blocks_is_what_slurm_reads() -> None:
    (found,) = yaml.safe_load(yaml_text(NODES, "block", (1, 2), compress))
    assert found["block"]["block_sizes"] == [1, 2]
    assert found["block"]["blocks"][0] == {"block": "nn-d", "nodes": "gpu-[1-2],gpu-10"}
    with pytest.raises(InvalidInput, match="of kind tree or block, not 'ring'"):
        yaml_text(NODES, "ring")


@given(places)
def test_yaml_holds_the_same_as_the_tree_whatever_names_look_like(nodes: dict[str, Path]) -> None:
    (found,) = yaml.safe_load(yaml_text(nodes, "tree"))
    read = [
        Switch(
            entry["switch"],
            tuple(entry["nodes"].split(",")) if "nodes" in entry else (),
            tuple(entry["children"].split(",")) if "children" in entry else (),
        )
        for entry in found["tree"]["switches"] or []
    ]
    assert read == tree(nodes)


# --- on the way to the head node --------------------------------------------------------------------------


def test_what_is_packed_is_unpacked() -> None:
    nodes = {**NODES, "login": UNKNOWN}
    assert unpacked(packed(nodes)) == nodes and unpacked(packed({})) == {}


def test_the_largest_cluster_fits_into_a_command() -> None:
    """4,096 nodes in three layers, with names as EC2 gives them, which have no pattern to be packed."""
    ids = (f"nn-{number * 0x9E3779B97F4A7C15 % 16**17:017x}" for number in itertools.count(1))
    tops, middles = [next(ids) for _ in range(4)], [next(ids) for _ in range(32)]
    leaves = [next(ids) for _ in range(256)]
    nodes = {
        f"gpu-st-p5-{number}": (tops[number // 1024], middles[number // 128], leaves[number // 16])
        for number in range(4096)
    }
    assert len(packed(nodes)) < 40_000
    assert unpacked(packed(nodes)) == nodes


def damaged(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()


@pytest.mark.parametrize(
    "text",
    [
        "", "?", "AAAA", packed(NODES)[:-8], damaged(zlib.compress(b"[1]")), damaged(zlib.compress(b"no")),
        damaged(zlib.compress(b'{"a/b": ["x y"]}')), damaged(zlib.compress(b'{"a/b": "gpu-1"}')),
        damaged(zlib.compress(b'{"a": ["$(reboot)"]}')), damaged(zlib.compress(b" " * 2**25)),
    ],
)  # fmt: skip
def test_what_is_cut_or_not_ours_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidInput, match="the list of places"):
        unpacked(text)
