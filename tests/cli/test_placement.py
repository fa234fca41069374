"""planaria placement: the tree with the job's nodes, for scripts and for people."""

from planaria.core.topology import Path, hops
from tests.cli.conftest import NODES, NOW, Bench

JOB = "gpt"
NEAR, BESIDE = ("nn-1", "nn-2", "nn-4"), ("nn-1", "nn-2", "nn-5")
FAR = ("nn-1", "nn-3", "nn-6")


def put(bench: Bench, *places: Path) -> None:
    for node, path in zip(NODES, places, strict=False):
        bench.gateways.ledger.note_node(node, {"topology": list(path)} if path else {"state": "running"})


def test_the_tree_of_a_job(bench: Bench) -> None:
    bench.add_nodes(JOB)
    put(bench, NEAR, NEAR, BESIDE, FAR)
    spare = "i-000000000000000aa"
    bench.gateways.ledger.note_node(spare, {"state": "running", "topology": list(BESIDE)})
    gone = "i-000000000000000ab"
    bench.gateways.ledger.note_node(gone, {"state": "terminated", "gone": True, "topology": list(BESIDE)})
    document = bench.run("placement", JOB, "--json").json
    places = (NEAR, NEAR, BESIDE, FAR)
    total = sum(hops(one, other) for index, one in enumerate(places) for other in places[:index])
    numbers = {key: document[key] for key in ("job_id", "nodes", "known", "hops", "switches", "unknown")}
    assert numbers == {
        "job_id": JOB, "nodes": 4, "known": 4, "hops": total, "switches": [1, 2, 3], "unknown": [],
    }  # fmt: skip
    assert document["mean_hops"] == round(total / 6, 3) and document["others_unknown"] == 0
    (top,) = document["tree"]
    assert (top["network_node"], top["layer"], top["job_nodes"], top["other_nodes"]) == ("nn-1", 1, 4, 1)
    middle, far = top["below"]
    assert [entry["network_node"] for entry in middle["below"]] == ["nn-4", "nn-5"]
    assert middle["below"][0]["nodes"] == [
        {"node_id": NODES[0], "name": "demo-1", "ranks": [0]},
        {"node_id": NODES[1], "name": "demo-2", "ranks": [1]},
    ]
    assert middle["below"][1]["other_nodes"] == 1 and far["other_nodes"] == 0
    out = bench.run("placement", JOB).out
    assert f"Job gpt: 4 nodes, {total} hops over all pairs" in out and "per layer: 1 / 2 / 3" in out
    assert "nn-5  1 of the job, 1 other" in out and f"demo-4  {NODES[3]}  rank 3" in out
    assert "UNKNOWN" not in out


def test_nodes_whose_place_is_unknown_are_listed_apart(bench: Bench) -> None:
    bench.add_nodes(JOB)
    put(bench, NEAR, FAR, (), ())
    why = "UnsupportedOperation: not in this region"
    bench.gateways.ledger.note_node(NODES[2], {"located": {"at": NOW, "why": why, "final": True}})
    bench.gateways.ledger.note_node(NODES[3], {"state": "stopped"})
    document = bench.run("placement", JOB, "--json").json
    assert (document["nodes"], document["known"], document["hops"]) == (4, 2, hops(NEAR, FAR))
    assert [(entry["name"], entry["reason"]) for entry in document["unknown"]] == [
        ("demo-3", why), ("demo-4", "the instance is stopped"),
    ]  # fmt: skip
    out = bench.run("placement", JOB).out
    assert "2 of 4 nodes" in out and why in out and "the instance is stopped" in out


def test_nothing_is_known(bench: Bench) -> None:
    bench.add_nodes(JOB)
    answer = bench.run("placement", JOB)
    assert answer.status == 0
    assert (
        "Nothing is known of where the nodes of job gpt are in EC2's network (EC2 has not been" in answer.out
    )
    document = bench.run("placement", JOB, "--json").json
    assert (document["hops"], document["mean_hops"], document["tree"]) == (None, None, [])
    assert len(document["unknown"]) == 4


def test_a_job_of_one_node_is_no_way_from_anywhere(bench: Bench) -> None:
    bench.add_nodes()
    bench.gateways.jobs.register("one", ["demo-1"], NODES[:1], {})
    put(bench, NEAR)
    document = bench.run("placement", "one", "--json").json
    assert (document["hops"], document["mean_hops"], document["switches"]) == (0, 0.0, [1, 1, 1])
    assert "1 node, 0 hops" in bench.run("placement", "one").out


def test_a_job_that_nobody_knows(bench: Bench) -> None:
    answer = bench.run("placement", "nobody")
    assert answer.status == 2 and "o job of this cluster is called 'nobody'; it has none" in answer.err
    bench.add_nodes(JOB)
    assert "it has gpt" in bench.run("placement", "nobody").err


def test_a_node_that_the_ledger_has_forgotten(bench: Bench) -> None:
    bench.gateways.jobs.register(JOB, ["demo-1"], NODES[:1], {})
    document = bench.run("placement", JOB, "--json").json
    assert document["unknown"][0]["reason"] == "the node is not in the ledger"


def test_what_ec2_says_never_reaches_the_terminal_as_it_is(bench: Bench) -> None:
    bench.add_nodes(JOB)
    put(bench, ("nn-\x1b[31m1", "nn-2", "[bold]x"))
    out = bench.run("placement", JOB).out
    assert "\x1b" not in out and "[bold]x" in out
