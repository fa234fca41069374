"""State "Follow": how far nodes or FSx have come with the step."""

from lambdas import sync_copying, sync_exporting, sync_work
from lambdas.boundary import Event, Fields, task
from lambdas.sync_work import At
from planaria.core import sync_plan
from planaria.core.checkpoint_ledger import CheckpointLedger, order
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
        return sync_work.over(gw, at, sync_work.PUT_BACK)
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
    """Before a node is taken the newest step counts more than an older one that is under way, if it can be
    tried now. What was copied of the older one stays and is not copied again."""
    deadline, work, now = at.row.get("deadline"), at.work, gw.clock.now()
    if deadline is None or now >= float(deadline) or work["stage"] not in (COPY, HASH, EXPORT):
        return False
    if at.row.get("wish") == work["step"]:
        return False
    attempts = (gw.jobs.job(at.job) or {}).get("attempts") or {}
    known = sync_plan.on_line(CheckpointLedger(gw.table).steps(at.job), attempts)
    following = sync_plan.choose(known, now, None, deadline)
    if following is not None and order(following) > order(work):
        return True
    # One that was saved since is not listed yet: it is looked for once, for the next work begins after it.
    newest = at.row.get("newest")
    return bool(
        newest and order(newest) > order(work) and float(work["began_at"]) < float(newest["saved_at"]) <= now
    )
