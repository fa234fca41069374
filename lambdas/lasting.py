"""What was not believed when it was told of, and would be now: sweep judges it anew.

A condition has lasted as long as it must, or the time after a boot is over. Their source reports a change
once and then is silent, so nobody else would.
"""

from lambdas.inventory import SOURCE
from planaria.core.decision import due
from planaria.core.incident import ACTIVE
from planaria.core.node import NodeView
from planaria.core.parsers import REPEATS
from planaria.core.table import Row
from planaria.wiring import Gateways

AGAIN_SECONDS = 600.0
"""What was judged and left alone (unconfirmed, held) is judged again after so long."""


def raise_again(gw: Gateways, row: Row) -> bool:
    """Put the lasting conditions of one node on the bus, as findings of sweep; True when there were any."""
    now = gw.clock.now()
    waits = row.get("phase") in ACTIVE or row.get("gone") or row.get("held")
    if waits or now - float(row.get("raised_at") or 0.0) < AGAIN_SECONDS:
        return False
    findings = [
        {
            "version": 1,
            "instance_id": row["node_id"],
            "kind": kind,
            "code": code,
            "time": now,
            REPEATS: True,
            "description": f"reported bad for {now - since:.0f} s",
        }
        for kind, code, since in due(NodeView.from_row(row), gw.cluster.policy, now)
    ]
    if not findings:
        return False
    gw.bus.put(SOURCE, "Planaria Sweep Finding", findings)
    gw.table.write(row["pk"], row["sk"], sets={"raised_at": now})
    return True
