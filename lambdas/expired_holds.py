"""Holds whose time is over on a scheduler that does not end them by itself.

On Kubernetes a hold is a taint, and nothing there takes a taint away at a given time. The adapter does so on
any request; sweep makes one, so that it happens although nothing else goes on.
"""

from planaria.core.errors import PlanariaError
from planaria.core.scheduling import NodeQuery
from planaria.wiring import Gateways


def end(gw: Gateways) -> int:
    """1 when the scheduler was asked. A scheduler that does not answer is asked again in a minute."""
    if gw.cluster.scheduler != "eks":
        return 0
    try:
        gw.scheduler.submit(NodeQuery(()))
    except PlanariaError:
        return 0
    return 1
