"""Mode `approve` in a sandbox of its own: the emulator's Step Functions wait for a person's word."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from planaria.cli.approve import give
from planaria.core import approval
from planaria.core.approval import Answer
from planaria.sandbox.world import World, WorldConfig
from tests.e2e.conftest import HERE, SCALE, Bench


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder: Path = tmp_path_factory.mktemp("approve")
    document: dict[str, Any] = yaml.safe_load((HERE / "cluster.yaml").read_text())
    document["policy"] |= {"mode": "approve", "approval_timeout_minutes": 5}
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    config = WorldConfig(folder / "w", cluster_file=file, time_scale=SCALE, auth=True, direct=True)
    with World(config) as world:
        yield Bench(world)


def waiting(bench: Bench, name: str) -> str:
    """Breaks this node; the incident that waits for a word by then."""
    node = bench.node(name)
    bench.inject("xid79", name)
    bench.until("question", lambda: approval.waits(bench.gw.ledger.node(node) or {}))
    row = bench.gw.ledger.node(node) or {}
    return f"{node}-{row['session']}"


def ended(bench: Bench, name: str, seconds: float = 120.0) -> dict[str, Any]:
    return dict(
        bench.until(
            "end", lambda: (head := bench.gw.ledger.incident(name)[0] or {}).get("outcome") and head, seconds
        )
    )


@pytest.mark.needs("emulator")
def test_yes_no_and_nothing(asking: Bench) -> None:
    gw = asking.gw
    first = waiting(asking, "e2e-2")
    time.sleep(3)
    assert "outcome" not in (gw.ledger.incident(first)[0] or {})
    assert asking.idle()  # nothing is isolated
    give(gw, first, Answer.APPROVED, "ada", "it is really broken")
    assert ended(asking, first)["outcome"] == "HEALED"

    second = waiting(asking, "e2e-3")
    give(gw, second, Answer.REJECTED, "ada", "we need it tonight")
    head = ended(asking, second, 30)
    assert (head["outcome"], head["outcome_reason"]) == ("CANCELLED", "rejected by ada: we need it tonight")

    third = waiting(asking, "e2e-4")
    head = ended(asking, third, 150)  # half a minute, and the next minute's sweep
    assert (head["outcome"], head["outcome_reason"]) == (
        "ESCALATED",
        "nobody approved within 30 s; the node is as it was",
    )
    asking.until("idle nodes", asking.idle)
