"""The Lambda dies after any one of its writes, answers get lost, versions conflict: asked again, each request
ends where it would have ended, and nothing is done twice.
"""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from planaria.core.errors import TransientError
from planaria.core.scheduling import (
    Hold,
    Isolate,
    JobsOn,
    Join,
    Lost,
    NodeQuery,
    Readmit,
    Requeue,
    SchedulerRequest,
    Stop,
)
from tests.kubernetes.api_server import Call
from tests.kubernetes.cluster import NAMESPACE, Cluster, cluster, instance_of, key_of

MARK = "planaria:s-1"
REPLACEMENT = instance_of(9)


def until(k8s: Cluster, request: SchedulerRequest, wanted: Callable[[str], bool]) -> str:
    """Ask as the workflow does: again after every failure, until the word is the wanted one."""
    word = ""
    for _ in range(60):
        try:
            (word,) = map(str, k8s.ask(request).values())
        except TransientError:
            continue
        if wanted(word):
            return word
        k8s.advance(2.0)
    raise AssertionError(f"{request} ends as {word!r}")


def heal(k8s: Cluster, gone: bool = False) -> None:
    """A node of a job of three fails: everything that a heal asks of the scheduler, in its order. gone: the
    instance is no more, and its kubelet never says that its pod has ended."""
    if gone:
        k8s.lose(key_of(2))
    until(k8s, Isolate(("demo-2",), MARK), lambda w: w == "ISOLATED")
    until(k8s, Hold("gpt", ("demo-1", "demo-2", "demo-3"), 3600.0), lambda w: w == "HELD")
    if gone:
        until(k8s, Lost(("demo-2",), MARK), lambda w: w == "ISOLATED")
    until(k8s, Stop(("gpt",), "TERM", 2.0), lambda w: w == "STOPPED")
    k8s.add_node(key_of(9), REPLACEMENT, joining=True)
    until(k8s, Join("demo-2", REPLACEMENT, "", MARK), lambda w: w == "JOINED")
    until(k8s, Readmit(("demo-2",), MARK), lambda w: w == "READMITTED")
    until(k8s, Requeue("gpt", ("demo-1", "demo-2", "demo-3"), 2, 40), lambda w: w == "RUNNING")


def prepare(k8s: Cluster) -> None:
    k8s.add_job("gpt", 3, backoffLimit=0)
    for number in range(3):
        k8s.add_job(f"queued-{number}", 1)


def healed(k8s: Cluster) -> None:
    k8s.advance(1.0)
    job = k8s.job("gpt")
    assert job["metadata"]["annotations"] == {"planaria/attempt": "2", "planaria/resume-step": "40"}
    assert "planaria/held" not in job["metadata"].get("labels", {})
    assert job["status"]["failed"] == 0, "no stop of ours counts as the job's failure"
    on = k8s.ask(NodeQuery(("demo-1", "demo-2", "demo-3")))
    assert on["demo-2"]["node_id"] == REPLACEMENT
    assert [on[name]["reason"] for name in sorted(on)] == ["", "", ""]
    assert k8s.ask(JobsOn(("demo-1", "demo-2", "demo-3"))) == {name: ["gpt"] for name in on}
    assert len(k8s.live("gpt")) == 3
    assert all(k8s.where(f"queued-{number}") == [""] for number in range(3)), "they took no survivor"
    for key in (key_of(1), key_of(9), key_of(3)):
        assert k8s.taints(key) == []
        assert not k8s.node(key)["spec"].get("unschedulable")
    old = k8s.node(key_of(2))
    assert old["spec"]["unschedulable"] is True and "planaria/name" not in old["metadata"]["labels"]


def count_of_writes(gone: bool) -> int:
    with cluster() as k8s:
        prepare(k8s)
        heal(k8s, gone)
        healed(k8s)
        return len(k8s.api.writes())


@pytest.mark.parametrize("gone", [False, True], ids=["lives", "gone"])
def test_a_heal_without_failures_and_how_many_writes_it_takes(gone: bool) -> None:
    assert 8 < count_of_writes(gone) < 60


@pytest.mark.parametrize("gone", [False, True], ids=["lives", "gone"])
@pytest.mark.parametrize("lost_answer", [True, False], ids=["after the write", "before the write"])
def test_a_crash_at_every_write_of_a_heal(lost_answer: bool, gone: bool) -> None:
    for crash_at in range(count_of_writes(gone)):
        with cluster() as k8s:
            prepare(k8s)
            seen = 0

            def crash(call: Call) -> None:
                nonlocal seen
                if not call.writes:
                    return
                seen += 1
                if seen == crash_at + 1:  # noqa: B023  one world per round
                    raise ConnectionError

            def tick_and_crash(call: Call, k8s: Cluster = k8s) -> None:
                k8s.controllers.tick()
                crash(call)

            if lost_answer:
                k8s.api.after_write = crash
            else:
                k8s.api.before = tick_and_crash
            heal(k8s, gone)
            healed(k8s)


@pytest.mark.campaign
@pytest.mark.parametrize("gone", [False, True], ids=["lives", "gone"])
@pytest.mark.parametrize("seed", range(12))
def test_a_heal_among_storms_of_everything(seed: int, gone: bool) -> None:
    """Answers are lost, writes conflict, the server is throttled, while others write to the same objects."""
    chance = random.Random(seed)
    with cluster() as k8s:
        prepare(k8s)
        beat = 0

        def storm(call: Call) -> None:
            nonlocal beat
            k8s.controllers.tick()
            if call.verb == "patch" and chance.random() < 0.4:
                beat += 1
                space = NAMESPACE if call.namespace else ""
                k8s.store.mark("annotations", call.resource, space, call.name, {"beat": str(beat)})
            if chance.random() < 0.05:
                raise ConnectionError

        def lose(call: Call) -> None:
            if chance.random() < 0.1:
                raise ConnectionError

        k8s.api.before, k8s.api.after_write = storm, lose
        heal(k8s, gone)
        k8s.api.before = lambda call: k8s.controllers.tick()
        k8s.api.after_write = lambda call: None
        for kind, space, name in (("jobs", NAMESPACE, "gpt"), *(("nodes", "", key_of(n)) for n in (1, 3, 9))):
            k8s.store.mark("annotations", kind, space, name, {"beat": None})
        healed(k8s)


def test_two_lambdas_heal_at_the_same_time() -> None:
    """An execution that was taken for dead goes on beside its successor."""
    with cluster() as k8s:
        prepare(k8s)
        k8s.add_node(key_of(9), REPLACEMENT, joining=True)
        errors: list[BaseException] = []

        def run() -> None:
            try:
                until(k8s, Isolate(("demo-2",), MARK), lambda w: w == "ISOLATED")
                until(k8s, Hold("gpt", ("demo-1", "demo-2", "demo-3"), 3600.0), lambda w: w == "HELD")
                until(k8s, Stop(("gpt",), "TERM", 2.0), lambda w: w == "STOPPED")
            except BaseException as error:  # noqa: BLE001  told to the test's own thread
                errors.append(error)

        both = [threading.Thread(target=run) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert errors == []
        until(k8s, Join("demo-2", REPLACEMENT, "", MARK), lambda w: w == "JOINED")
        until(k8s, Readmit(("demo-2",), MARK), lambda w: w == "READMITTED")
        words: list[Any] = []

        def start() -> None:
            request = Requeue("gpt", ("demo-1", "demo-2", "demo-3"), 2, 40)
            words.append(until(k8s, request, lambda w: w == "RUNNING"))

        both = [threading.Thread(target=start) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        assert words == ["RUNNING", "RUNNING"]
        healed(k8s)
