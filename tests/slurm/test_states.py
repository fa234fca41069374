"""Node states: a base and flags, in all their spellings."""

import itertools

import pytest

from planaria.core.scheduling import NodeState
from planaria.slurm import states
from planaria.slurm.states import SUFFIXES, parse

BASES = ("IDLE", "ALLOCATED", "MIXED", "DOWN", "ERROR", "FUTURE", "UNKNOWN")
FLAGS = (
    *("CLOUD", "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "POWER_DOWN", "POWER_UP", "COMPLETING"),
    *("REBOOT_REQUESTED", "REBOOT_ISSUED", "NOT_RESPONDING", "INVALID_REG", "PLANNED", "RESERVED"),
    *("MAINTENANCE", "DRAIN", "FAIL", "PERFCTRS", "DYNAMIC_NORM", "BLOCKED"),
)
HARMLESS = {"CLOUD", "PLANNED", "RESERVED", "DYNAMIC_NORM", "BLOCKED"}


@pytest.mark.parametrize("base", BASES)
def test_every_combination_of_up_to_three_flags(base: str) -> None:
    for count in range(4):
        for flags in itertools.combinations(FLAGS, count):
            words = parse("+".join([base, *flags]))
            assert words == parse([base, *flags]) == parse(base.lower(), flags), flags
            assert (words.base, words.flags) == (base, set(flags))
            _sound(words.state, base, set(flags))


def _sound(state: NodeState, base: str, flags: set[str]) -> None:
    """What no combination may ever be called."""
    if base == "DOWN":
        assert state is NodeState.DOWN
        return
    held, busy = bool(flags & {"DRAIN", "FAIL"}), base in ("ALLOCATED", "MIXED") or "COMPLETING" in flags
    if state is NodeState.IDLE:
        assert base == "IDLE" and flags <= HARMLESS
    if state is NodeState.DRAINED:
        assert base == "IDLE" and held and not busy
        assert flags <= HARMLESS | {"DRAIN", "FAIL"}
    if state is NodeState.ALLOCATED:
        assert busy and not held
    if state is NodeState.DRAINING:
        assert busy and held
    if base in ("ERROR", "FUTURE", "UNKNOWN"):
        assert state is NodeState.UNKNOWN
    if base == "IDLE" and flags <= HARMLESS:
        assert state is NodeState.IDLE
    if base == "ALLOCATED" and flags <= HARMLESS | {"COMPLETING", "MAINTENANCE", "REBOOT_REQUESTED"}:
        assert state is NodeState.ALLOCATED


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("rest", [(), ("DRAIN",), ("CLOUD", "DRAIN")])
def test_a_flag_that_is_not_known_is_never_healthy_and_never_empty(base: str, rest: tuple[str, ...]) -> None:
    words = parse([base, *rest, "A_FLAG_OF_LATER"])
    assert words.state is NodeState.UNKNOWN
    assert not words.free and not words.clear
    assert words.unknown == ("A_FLAG_OF_LATER",)


def test_the_suffixes_of_sinfo() -> None:
    for sign, flag in SUFFIXES.items():
        assert parse(f"allocated{sign}") == parse(["ALLOCATED", flag]), sign
    assert parse("down*+drain") == parse(["DOWN", "NOT_RESPONDING", "DRAIN"])
    assert parse("idle~#").flags == {"POWERED_DOWN", "POWERING_UP"}
    assert parse("idle?").state is NodeState.UNKNOWN


@pytest.mark.parametrize(
    ("written", "state"),
    [
        ("drained", NodeState.DRAINED),
        ("draining", NodeState.DRAINING),
        ("drng", NodeState.DRAINING),
        ("drained*", NodeState.UNKNOWN),
        ("mixed-", NodeState.ALLOCATED),
        ("idle~", NodeState.UNKNOWN),
        ("inval", NodeState.UNKNOWN),
        ("maint", NodeState.UNKNOWN),
        ("", NodeState.UNKNOWN),
        ("IDLE+DOWN", NodeState.UNKNOWN),
    ],
)
def test_spellings(written: str, state: NodeState) -> None:
    assert parse(written).state is state


def test_only_an_idle_node_that_is_meant_for_nobody_is_free() -> None:
    for written in ("IDLE", "IDLE+RESERVED", "IDLE+PLANNED", "IDLE+CLOUD"):
        assert parse(written).free, "who holds it is looked up, and a plan is no hold"
    for written in (
        "IDLE+MAINTENANCE",
        "IDLE+BLOCKED",
        "MIXED",
        "IDLE+DRAIN",
        "IDLE+CLOUD+POWERED_DOWN",
    ):
        assert not parse(written).free, written


def test_every_word_of_the_table_is_understood() -> None:
    table = states._table()
    assert len(table) > 40
    for word, meaning in table.items():
        assert meaning.base in {*BASES, ""}, word
        assert meaning.flags or meaning.base, word
