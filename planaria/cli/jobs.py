"""`planaria jobs`."""

import typer

from planaria.cli import options, records, screen
from planaria.cli.target import connect

app = typer.Typer()


@app.command("jobs")
def jobs(
    as_json: options.Json = False,
    cluster: options.Cluster = options.DEFAULT_CLUSTER,
    folder: options.Folder = None,
    aws: options.Aws = False,
) -> None:
    """List the training jobs: on which nodes, which attempt, and what they wait for.

    Example: planaria jobs --json
    """
    gateways = connect(cluster, folder, aws).gateways
    names = records.names_of(gateways.ledger.nodes())
    documents = [records.job_document(row, names) for row in gateways.jobs.jobs()]
    if as_json:
        screen.emit(documents)
        return
    if not documents:
        screen.say("No job is registered; in a sandbox, `planaria sandbox up` starts one.", stderr=False)
        return
    rows: list[tuple[object, ...]] = []
    for document in documents:
        waits = [_name(node) for node in (*document["waits_for"], *document["unresolved"])]
        step = document["resume_step"]
        rows.append(
            (
                document["job_id"],
                document["state"],
                document["attempt"],
                " ".join(_name(node) for node in document["nodes"]),
                " ".join(waits),
                None if step is None else ("the beginning" if int(step) < 0 else f"step {step}"),
                document["resume"],
            )
        )
    columns: tuple[str, ...] = (
        "JOB", "STATE", "ATTEMPT", "NODES", "WAITS FOR", "RESUMED FROM", "LAST RESUME",
    )  # fmt: skip
    needs = [document["needs_you"] for document in documents]
    if any(needs):
        columns = (*columns, "NEEDS YOU")
        rows = [(*row, why) for row, why in zip(rows, needs, strict=True)]
    screen.console().print(screen.table(columns, rows, fold=("NODES", "WAITS FOR", "NEEDS YOU")))


def _name(node: dict[str, str]) -> str:
    return node["name"] or node["node_id"]
