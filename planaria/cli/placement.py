"""`planaria placement`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from planaria.cli import options, records, screen
from planaria.cli.target import connect
from planaria.core.errors import InvalidInput
from planaria.core.plans import is_gone
from planaria.core.table import Row
from planaria.core.topology import Path, Spread, of_row

app = typer.Typer()

NOT_ASKED = "EC2 has not been asked yet: sweep does within a minute once the node runs"


@app.command("placement")
def placement(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job, as `planaria jobs` lists it.")],
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """Show where in EC2's network a job's nodes are, and how far they are from each other.

    Example: planaria placement gpt-demo
    """
    gateways = connect(cluster, folder, aws).gateways
    row = gateways.jobs.job(job)
    if row is None:
        known = ", ".join(sorted(str(one["job_id"]) for one in gateways.jobs.jobs()))
        raise InvalidInput(f"no job of this cluster is called {job!r:.60}; it has {known or 'none'}")
    document = placement_document(row, gateways.ledger.nodes())
    if as_json:
        screen.emit(document)
        return
    _show(document)


def placement_document(job: Row, rows: Iterable[Row]) -> records.Document:
    """One job as scripts see it. rows: every node of the ledger."""
    known = {str(row["node_id"]): row for row in rows}
    ranks: dict[str, list[int]] = {}
    for rank, node in sorted(job.get("nodes", {}).items(), key=lambda item: int(item[0])):
        ranks.setdefault(str(node), []).append(int(rank))
    mine = {node: of_row(known.get(node)) for node in ranks}
    others = [of_row(row) for node, row in known.items() if node not in ranks and not is_gone(row)]
    spread = Spread.of(mine.values())
    # Beside unknown places a sum of hops would say more about what is not known than about the network.
    told = Spread.of(path for path in mine.values() if path)
    members = {node: _member(node, ranks[node], known.get(node) or {}) for node in ranks}
    return {
        "job_id": job["job_id"],
        "nodes": spread.nodes,
        "known": told.nodes,
        "hops": told.hops if told.nodes else None,
        "mean_hops": round(told.mean_hops, 3) if told.nodes else None,
        "switches": list(told.switches),
        "others_unknown": others.count(()),
        "tree": _below((), mine, members, Counter(path for path in others if path)),
        "unknown": [
            members[node] | {"reason": _why(known.get(node))} for node, path in mine.items() if not path
        ],
    }


def _member(node: str, ranks: list[int], row: Row) -> records.Document:
    return {"node_id": node, "name": row.get("name"), "ranks": ranks}


def _why(row: Row | None) -> str:
    if row is None:
        return "the node is not in the ledger"
    if row.get("state") and row["state"] != "running":
        return f"the instance is {row['state']}"
    return str((row.get("located") or {}).get("why") or NOT_ASKED)


def _below(
    prefix: Path, mine: Mapping[str, Path], members: Mapping[str, Any], others: Counter[Path]
) -> list[records.Document]:
    """The network nodes below this one that have nodes of the job below them, most of them first."""
    depth = len(prefix)
    children = {path[: depth + 1] for path in mine.values() if len(path) > depth and path[:depth] == prefix}
    found: list[records.Document] = []
    for child in children:
        inside = [node for node, path in mine.items() if path[: depth + 1] == child]
        entry = {
            "network_node": child[-1],
            "layer": depth + 1,
            "job_nodes": len(inside),
            "other_nodes": sum(number for path, number in others.items() if path[: depth + 1] == child),
            "nodes": [members[node] for node in inside if mine[node] == child],
            "below": _below(child, mine, members, others),
        }
        found.append(entry)
    return sorted(found, key=lambda entry: (-entry["job_nodes"], entry["network_node"]))


# --- for people ----------------------------------------------------------------------------------------


def _show(document: records.Document) -> None:
    shown = screen.console()
    unknown = document["unknown"]
    if not document["known"]:
        why = Counter(entry["reason"] for entry in unknown).most_common(1)
        reason = f" ({why[0][0]})" if why else ""
        screen.say(
            f"Nothing is known of where the nodes of job {document['job_id']} are in EC2's network{reason}.",
            stderr=False,
        )
    else:
        drawn = Tree(Text(_headline(document)))
        for entry in document["tree"]:
            _draw(drawn, entry)
        shown.print(drawn)
    if unknown:
        listed = [[_name(entry), entry["node_id"], _ranks(entry), entry["reason"]] for entry in unknown]
        columns = ("UNKNOWN", "ID", "RANK", "WHY")
        shown.print(screen.table(columns, listed, fold=("WHY",)))


def _headline(document: records.Document) -> str:
    known, nodes = document["known"], document["nodes"]
    of = f"{known} of {nodes}" if known != nodes else str(nodes)
    return (
        f"Job {document['job_id']}: {of} {_plural(nodes, 'node')}, {document['hops']} hops over all pairs, "
        f"{document['mean_hops']:.2f} on average; network nodes per layer: "
        f"{' / '.join(map(str, document['switches']))}"
    )


def _draw(drawn: Tree, entry: records.Document) -> None:
    others = entry["other_nodes"]
    counted = f"{entry['job_nodes']} of the job" + (
        f", {others} {_plural(others, 'other')}" if others else ""
    )
    branch = drawn.add(Text.assemble((entry["network_node"], "bold"), f"  {counted}"))
    for node in entry["nodes"]:
        branch.add(Text(f"{_name(node)}  {node['node_id']}  rank {_ranks(node)}"))
    for child in entry["below"]:
        _draw(branch, child)


def _name(entry: records.Document) -> str:
    return str(entry["name"] or entry["node_id"])


def _ranks(entry: records.Document) -> str:
    return ", ".join(map(str, entry["ranks"]))


def _plural(number: int, word: str) -> str:
    return word if number == 1 else f"{word}s"
