"""Nodes that were left to a person: is their isolation still there?

After ESCALATED a node is isolated until a person orders it healed, or mends it and readmits it in the
scheduler by hand. Nobody tells of the latter, and its faults would be held as those of a node that is out of
work.
"""

from lambdas.boundary import ask_scheduler
from planaria.core.errors import PlanariaError, Waiting
from planaria.core.incident import Phase
from planaria.core.plans import is_gone
from planaria.core.scheduling import NodeQuery, NodeState
from planaria.core.table import Row, equals
from planaria.wiring import Gateways

AGAIN_SECONDS = 300.0
IN_SERVICE = (NodeState.IDLE, NodeState.ALLOCATED)


def look(gw: Gateways, row: Row) -> bool:
    """Ask the scheduler, every few minutes; True when the node works again and its row says so.

    May be repeated. A node that somebody else has isolated meanwhile, or whose name another instance has,
    stays as it is.
    """
    asked, now = row.get("asked_isolation") or {}, gw.clock.now()
    carry = dict(asked.get("carry") or {})
    left = row.get("phase") == Phase.ESCALATED and row.get("isolation") and not is_gone(row)
    lately = not carry and now - float(asked.get("at") or 0.0) < AGAIN_SECONDS
    if not left or lately or row.get("replaced_by"):
        return False
    name = str(row.get("name") or row["node_id"])
    try:
        answer = ask_scheduler(gw, {"carry": carry}, "node", NodeQuery((name,))).get(name) or {}
    except Waiting as wait:
        gw.ledger.note_node(row["node_id"], {"asked_isolation": {"at": now, "carry": dict(wait.carry)}})
        return False
    except PlanariaError:
        answer = {}
    another = answer.get("node_id", "") not in ("", row["node_id"])  # "": this scheduler does not know
    if answer.get("state") not in IN_SERVICE or another:
        gw.ledger.note_node(row["node_id"], {"asked_isolation": {"at": now}})
        return False
    same = equals("session", row["session"]) & equals("phase", Phase.ESCALATED)
    gw.table.write(
        row["pk"],
        row["sk"],
        sets={"health": "Schedulable"},
        removes=("isolation", "isolation_asked", "asked_isolation"),
        when=same,
    )
    return True
