"""Stands around the handlers of the campaign's Task Lambdas. It goes into the sandbox's code asset only.

A function's handler is `fault_hook.<file>` instead of `lambdas.<file>.handler`. The campaign's machines put
{"machine", "state"} as `_campaign` into every payload, and the folder of PLANARIA_FAULTS says what is to
befall which subject (a node, a job, or the node group of a refill) there:

    plans/<subject>.json   {"leads": [{"machine", "state", "answer", "times"}],
                            "fault": {"machine", "state", "kind", "seconds", "proxy"} or null}
    met/<subject>/<machine>.<state>.<n>        the nth call of that state
    met/<subject>/<machine>.<state>.<n>.done   the nth call has done what it ever will
"""

import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Handler = Callable[[Any, Any], Any]
CALLS = 200
SUBJECTS = ("node_id", "job_id", "group", "node_group")
SPOILED_TRIES = 3


def __getattr__(name: str) -> Handler:
    """The handler of lambdas/<name>.py, wrapped."""
    if name.startswith("_"):
        raise AttributeError(name)
    module = importlib.import_module(f"lambdas.{name}")

    def handler(event: Any, context: Any) -> Any:
        if isinstance(event, dict) and "_warm" in event:
            return _warm(float(event["_warm"]))
        mark = event.pop("_campaign", None) if isinstance(event, dict) else None
        if mark is None:
            return module.handler(event, context)
        return _led(mark, _subject(event), lambda: module.handler(event, context))

    return handler


def _warm(seconds: float) -> None:
    """Loads what every call needs, and keeps this worker from the next one who wants to warm another."""
    from planaria import wiring

    gw = wiring.gateways()
    _ = gw.cluster, gw.table, gw.fleet, gw.workflows
    time.sleep(seconds)


def _subject(event: Mapping[str, Any]) -> str:
    """What the call is about."""
    for key in ("incident", "resume", "refill", "restore", "sync", "document"):
        about = event.get(key)
        if isinstance(about, Mapping):
            return next((str(about[name]) for name in SUBJECTS if about.get(name)), "")
    return ""


def _led(mark: Mapping[str, str], subject: str, work: Callable[[], Any]) -> Any:
    folder = Path(os.environ["PLANARIA_FAULTS"])
    try:
        plan = json.loads((folder / "plans" / f"{subject}.json").read_text())
    except (OSError, ValueError):
        return work()
    here = mark["machine"], mark["state"]
    leads = [lead for lead in plan["leads"] if (lead["machine"], lead["state"]) == here]
    fault = plan["fault"]
    if fault is not None and (fault["machine"], fault["state"]) != here:
        fault = None
    if not leads and fault is None:
        return work()
    place = folder / "met" / subject / ".".join(here).replace("/", "_")
    number, led = _count(place), 0
    for lead in leads:
        led += int(lead["times"])
        if number <= led:
            return dict(lead["answer"] or {})
    if fault is None:
        return work()
    return _befall(fault, number - led, work, place.with_name(f"{place.name}.{number}.done"))


def _count(place: Path) -> int:
    place.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, CALLS):
        try:
            os.close(os.open(f"{place}.{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            continue
        return number
    raise RuntimeError(f"{place.name} was called {CALLS} times")


def _befall(fault: Mapping[str, Any], number: int, work: Callable[[], Any], done: Path) -> Any:
    kind = fault["kind"]
    if kind == "throttled" and number <= SPOILED_TRIES:
        try:
            return _through(fault["proxy"], number, work)
        finally:
            done.touch()
    if number > 1:
        return work()
    if kind == "before":
        done.touch()
        os._exit(1)
    try:
        if kind == "twice":
            return _twice(work)
        if kind == "late":
            time.sleep(fault["seconds"])
        answer = work()
        if kind == "slow":
            time.sleep(fault["seconds"])
    finally:
        done.touch()
    if kind == "after":
        os._exit(1)
    return answer


def _twice(work: Callable[[], Any]) -> Any:
    """Both deliveries at once; the machine hears the one that ends last."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def deliver() -> None:
        try:
            answers.append(work())
        except Exception as error:  # noqa: BLE001  as the runtime would, whatever it is
            errors.append(error)

    threads = [threading.Thread(target=deliver) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[-1]
    return answers[-1]


def _through(proxy: str, number: int, work: Callable[[], Any]) -> Any:
    """The work with AWS behind a proxy that knows by the user agent what to refuse."""
    import boto3

    from planaria import wiring

    names = ("AWS_ENDPOINT_URL", "AWS_SDK_UA_APP_ID")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(AWS_ENDPOINT_URL=proxy, AWS_SDK_UA_APP_ID=f"campaign-{number}")
    _forget(boto3, wiring)
    try:
        return work()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _forget(boto3, wiring)


def _forget(boto3: Any, wiring: Any) -> None:
    """The next client is made anew, for the endpoint of its time."""
    boto3.DEFAULT_SESSION = None
    wiring.gateways.cache_clear()
