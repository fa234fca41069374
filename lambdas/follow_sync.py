"""State "Follow": how far nodes or FSx have come with the step."""

from lambdas import sync_copying, sync_exporting, sync_work
from lambdas.boundary import Event, Fields, task
from lambdas.sync_work import At
from planaria.core.checkpoint_ledger import order
from planaria.core.errors import PermanentError
from planaria.core.sync_plan import COPY, EXPORT, HASH
from planaria.wiring import Gateways


@task
def handler(event: Event, gw: Gateways) -> Fields:
    at = sync_work.enter(gw, event)
    if at is None:
        return sync_work.NEXT
    if _gives_way(gw, at):
        sync_work.release(gw, at.row, "a newer step comes first, for a node is about to be taken")
        return sync_work.over(gw, at, "put back")
    if gw.clock.now() - float(at.work["began_at"]) > sync_work.LONGEST_SECONDS:
        return sync_work.put_aside(gw, at, "it took longer than a day to get it to S3")
    try:
        return _go_on(gw, event, at)
    except PermanentError as error:
        return sync_work.put_aside(gw, at, str(error))


def _go_on(gw: Gateways, event: Event, at: At) -> Fields:
    match at.work["stage"]:
        case stage if stage in (COPY, HASH):
            return sync_copying.follow(gw, event, at)
        case stage if stage == EXPORT:
            return sync_exporting.follow(gw, at)
        case "verify" | "record" as stage:
            return {"next": stage}
    return sync_work.NEXT


def _gives_way(gw: Gateways, at: At) -> bool:
    """Before a node is taken the newest step counts more than an older one that is under way. What was
    copied of that one stays and is not copied again."""
    deadline, newest = at.row.get("deadline"), at.row.get("newest")
    if deadline is None or newest is None or gw.clock.now() >= float(deadline):
        return False
    return at.work["stage"] in (COPY, HASH, EXPORT) and order(newest) > order(at.work)
