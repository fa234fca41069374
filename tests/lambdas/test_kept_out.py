"""Nodes that Slurm keeps out of work by its own words: sweep asks, tells once, and the catalogue decides."""

import dataclasses
from typing import Any

import pytest

from lambdas import kept_out
from planaria.core.cluster import Cluster
from planaria.core.errors import TransientError
from planaria.core.scheduling import NodeQuery
from planaria.core.table import Row
from tests.lambdas import events
from tests.lambdas.conftest import Build
from tests.lambdas.test_node_stories import SICK, ask_reboot, fall_off
from tests.lambdas.world import JOB, NAMES, World, cluster, stub

NAME = "demo-1"
KILL = "Kill task failed", "Slurm/KillTaskFailed"
PROLOG = "Prolog error", "Slurm/PrologError"
GRES = "gres/gpu count reported lower than configured (7 < 8)", "Slurm/GresCount"
REBOOTED = "Node unexpectedly rebooted", "Slurm/UnexpectedReboot"
SILENT = "Not responding", "Slurm/NotResponding"
FIVE_SWEEPS = 310.0


def minutes(world: World, number: int = 6) -> None:
    """So many sweeps, and what follows from them; the question is asked again after five."""
    for _ in range(number):
        world.run(60)


def slurm(**policy: Any) -> Cluster:
    return dataclasses.replace(cluster(**policy), scheduler="slurm")


@pytest.fixture
def bare(build: Build) -> World:
    """Four nodes of a Slurm cluster and no job, which sweep has asked about once."""
    world = build(slurm(), job=False)
    world.run(70)
    return world


def drains(world: World, words: tuple[str, str], name: str = NAME) -> None:
    """Slurm itself takes the node out of work, now."""
    world.scheduler.state.isolate_by_itself(name, words[0], [words[1]], world.now)


def asked(world: World) -> int:
    return world.scheduler.requests.count(NodeQuery(()))


def conditions(world: World) -> list[tuple[str, str, str]]:
    """(code, rule, outcome) of every event about Slurm's own words."""
    rows = [row for (pk, _), row in world.table._rows.items() if pk.startswith("EVENT#")]
    told = [row for row in rows if row["kind"] == "node_condition"]
    return [(row["code"], row["rule"], row["outcome"]) for row in told]


def watch(world: World) -> Row:
    return world.table.get(*kept_out.KEY) or {}


# --- asking ------------------------------------------------------------------------------------------


def test_every_fifth_sweep_asks_for_the_whole_cluster(bare: World) -> None:
    assert asked(bare) == 1
    minutes(bare, 5)
    assert asked(bare) == 2
    assert "ticket" not in watch(bare)


@pytest.mark.parametrize("scheduler", ["process", "eks"])
def test_other_schedulers_are_not_asked(build: Build, scheduler: str) -> None:
    world = build(dataclasses.replace(cluster(), scheduler=scheduler))
    drains(world, KILL)
    assert kept_out.look(world.gw, world.gw.ledger.nodes()) == 0
    assert asked(world) == 0


def test_an_answer_is_waited_for_by_the_next_sweep_and_not_for_ever(bare: World) -> None:
    bare.scheduler.pending_polls = 2
    drains(bare, KILL)
    for polls in (1, 2):
        bare.clock.advance(60 if polls == 2 else FIVE_SWEEPS)
        bare.sweep()
        assert asked(bare) == 2 and watch(bare)["ticket"]
        assert conditions(bare) == []
    bare.scheduler.pending_polls = 99
    bare.clock.advance(60)
    bare.sweep()
    assert [detail["code"] for _, _, detail in bare.bus.events] == [KILL[1]]
    bare.clock.advance(FIVE_SWEEPS)
    bare.sweep()
    assert asked(bare) == 3
    bare.clock.advance(kept_out.OUT_SECONDS)
    bare.sweep()
    assert "ticket" not in watch(bare)


def test_a_scheduler_that_does_not_answer_keeps_no_sweep_from_its_work(bare: World) -> None:
    def away(*_: Any) -> Any:
        raise TransientError("throttled")

    drains(bare, KILL)
    give_back = stub(bare.scheduler, "submit", away)
    minutes(bare)
    assert asked(bare) == 1 and conditions(bare) == []
    bare.scheduler.submit = give_back  # type: ignore[method-assign]
    minutes(bare)
    assert conditions(bare)[0][2] == "OPENED"


@pytest.mark.parametrize(("call", "before"), [("bus.put", True), ("bus.put", False), ("table.write", True)])
def test_a_sweep_that_dies_tells_of_it_the_next_time(bare: World, call: str, before: bool) -> None:
    drains(bare, KILL)
    bare.clock.advance(FIVE_SWEEPS)
    bare.kill("sweep", call, before=before, nth=2 if call == "table.write" else 1)
    minutes(bare, 15)
    assert bare.ends == ["HEALED"] and bare.isolated == {}
    assert [call for call in bare.fleet.calls if call[0] == "reboot"] == [("reboot", SICK)]


# --- judging -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [KILL, REBOOTED])
def test_a_node_that_a_reboot_cures_is_rebooted_and_works_again(bare: World, words: tuple[str, str]) -> None:
    drains(bare, words)
    minutes(bare, 15)
    assert bare.ends == ["HEALED"] and bare.isolated == {}
    assert [call for call in bare.fleet.calls if call[0] == "reboot"] == [("reboot", SICK)]
    assert conditions(bare)[0][::2] == (words[1], "OPENED")
    assert bare.incidents[0]["fault"]["detector"] == "slurm"
    assert "kept_out" not in bare.node(SICK) and bare.notices.sent == []


def test_its_job_goes_on_elsewhere_or_after_it(build: Build) -> None:
    world = build(slurm(), job=False)
    world.scheduler.add_job("1200", 4)
    world.run(70)
    drains(world, KILL)
    minutes(world, 25)
    job = world.scheduler.state.jobs["1200"]
    assert world.ends == ["HEALED"] and (str(job.state), job.attempt) == ("RUNNING", 2)


@pytest.mark.parametrize("words", [PROLOG, GRES, SILENT])
def test_one_observers_word_is_kept_and_mailed_once(bare: World, words: tuple[str, str]) -> None:
    drains(bare, words)
    for _ in range(4):
        minutes(bare)
    assert bare.ends == [] and [outcome for _, _, outcome in conditions(bare)] == ["OBSERVED"]
    [(subject, text)] = bare.notices.sent
    assert subject == "Planaria demo: Slurm keeps 1 node(s) out of work by itself"
    assert f"{NAME}: {words[0]}" in text and "docs/runbooks/held.md" in text
    assert bare.isolated == {NAME: words[0]}, (
        "Slurm's own drain is nobody's to lift before an incident has it"
    )


def test_a_second_observer_confirms_it(bare: World) -> None:
    drains(bare, GRES)
    minutes(bare)
    assert bare.ends == []
    probe = {"kind": "gpu_missing", "code": "count", "count": 1}
    bare.send(events.agent(SICK, "Planaria Node Signal", bare.now, **probe))
    minutes(bare, 15)
    assert bare.ends == ["HEALED"] and bare.isolated == {}


def test_silence_is_confirmed_by_nothing_that_only_cannot_reach_it_either(bare: World) -> None:
    drains(bare, SILENT)
    minutes(bare)
    bare.send(events.event("planaria.sweep", "Planaria Sweep Finding", silent(bare), bare.now))
    minutes(bare, 15)
    assert bare.ends == []


def silent(world: World) -> dict[str, Any]:
    return {"version": 1, "instance_id": SICK, "kind": "node_health", "code": "silent", "time": world.now}


def test_a_mail_in_an_hour_names_all_that_came_since(bare: World) -> None:
    for name in NAMES[:3]:
        drains(bare, PROLOG, name)
        minutes(bare)
    assert len(bare.notices.sent) == 1
    for _ in range(10):
        minutes(bare)
    assert len(bare.notices.sent) == 2, "and no third one, for nothing new has come"
    assert all(f"{name}: Prolog error" in bare.notices.sent[1][1] for name in NAMES[:3])


def test_it_is_told_again_when_slurm_writes_it_again(bare: World) -> None:
    for times in (1, 2):
        drains(bare, PROLOG)
        for _ in range(2):
            minutes(bare)
        assert len([rule for _, rule, _ in conditions(bare) if rule == "unconfirmed"]) == times


def test_a_node_that_works_again_by_itself_is_reported_well(bare: World) -> None:
    drains(bare, PROLOG)
    minutes(bare)
    bare.scheduler.state.nodes[NAME].isolated = None
    minutes(bare)
    assert conditions(bare)[-1][1:] == ("reported-well", "OBSERVED")
    assert "kept_out" not in bare.node(SICK)
    assert "well" in bare.node(SICK)["subjects"]["node_condition|Slurm"]


def test_an_operators_hold_is_not_told(bare: World) -> None:
    bare.scheduler.state.foreign_isolate(NAME, "Kill task failed, says ada", by="ada")
    minutes(bare, 15)
    assert conditions(bare) == [] and bare.ends == []


def test_a_node_that_an_incident_has_gets_no_second_one(build: Build) -> None:
    world = build(slurm(mode="approve"), job=False)
    minutes(world, 1)
    fall_off(world)
    drains(world, KILL)
    minutes(world)
    assert [outcome for _, _, outcome in conditions(world)] == ["JOINED"]
    assert len(world.incidents) == 1 and world.isolated == {NAME: KILL[0]}, "it waits for a person"


def test_what_slurm_writes_on_a_node_that_we_have_isolated_is_an_echo(bare: World) -> None:
    bare.boots = False
    ask_reboot(bare)
    bare.run(30)
    assert bare.isolated[NAME].startswith("planaria:")
    drains(bare, REBOOTED)
    minutes(bare)
    assert conditions(bare) == [] and len(bare.incidents) == 1


def test_what_was_true_before_the_last_act_is_stale(bare: World) -> None:
    """The answer is of the moment of the question, however late it is heard."""
    bare.scheduler.pending_polls = 10**6
    drains(bare, KILL)
    bare.clock.advance(FIVE_SWEEPS)
    bare.sweep()
    bare.scheduler.pending_polls, bare.sweeps = 0, False
    ask_reboot(bare)
    bare.run(200)
    assert bare.ends == ["HEALED"]
    bare.scheduler._tickets[watch(bare)["ticket"]][2][0] = 0
    bare.sweeps = True
    minutes(bare)
    assert conditions(bare)[0] == (KILL[1], "stale", "STALE") and bare.ends == ["HEALED"]


def test_a_users_failing_job_drains_nothing(build: Build) -> None:
    world = build(slurm(), job=False)
    world.scheduler.add_job("1200", 4)
    world.run(70)
    world.scheduler.end_ranks("1200", 1)
    minutes(world, 15)
    assert conditions(world) == [] and world.ends == []


def test_the_breaker_holds_what_fails_on_every_node(build: Build) -> None:
    world = build(slurm(removals=1), job=False)
    world.run(70)
    world.boots = False
    for name in NAMES:
        drains(world, KILL, name)
    minutes(world)
    outcomes = [outcome for _, _, outcome in conditions(world)]
    assert sorted(outcomes) == ["HELD", "HELD", "HELD", "OPENED"]


def test_observe_mode_says_what_it_would_do(build: Build) -> None:
    world = build(slurm(mode="observe"), job=False)
    world.run(70)
    drains(world, KILL)
    minutes(world)
    assert conditions(world) == [(KILL[1], "slurm-kill-task-failed", "OPENED")]
    assert world.ends == [] and world.isolated == {NAME: KILL[0]} and JOB not in world.scheduler.state.jobs
