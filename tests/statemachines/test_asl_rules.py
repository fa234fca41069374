"""The design's rules for ASL files, over every file in statemachines/."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planaria.core import console
from planaria.core.errors import InvalidInput
from tests.lambdas import events
from tests.lambdas.conftest import build  # noqa: F401  a fixture
from tests.lambdas.world import NODES, World

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "statemachines").glob("*.asl.json"))
MACHINES = [path.name.partition(".")[0] for path in FILES]
EXAMPLES: dict[str, Callable[[object], Any]] = {
    **{m: (lambda d, m=m: console.node_order(m, d)) for m in MACHINES},  # type: ignore[misc]
    "resume_job": console.job_order,
    "restore_checkpoint": console.restore_order,
    "sync_checkpoints": console.sync_order,
    "refill_spares": lambda d: console.spare_order(d, ()),
}
FUNCTIONS = {"exists", "merge", "min", "string"}
"""What an expression may call: it selects, compares, merges and counts tries, nothing more."""
HISTORY_LIMIT = 25_000
STATE_EVENTS = {"Task": 5, "Wait": 2, "Choice": 2, "Pass": 2, "Parallel": 4, "Succeed": 2, "Fail": 1}
"""History events of one visit without a retry: entered, exited, and a Task's scheduled, started, ended."""
RETRY_EVENTS = 3
# Words of ours that no machine may rest on: the emulator reports every Python exception alike.
ERRORS = {
    "TransientError",
    "CapacityError",
    "PermanentError",
    "InvalidInput",
    "Fenced",
    "Waiting",
    "Conflict",
}


@dataclass(frozen=True, slots=True)
class Level:
    """One `States` object: the machine's own or a branch's."""

    machine: str
    where: str
    start: str
    states: dict[str, Any]
    branch: bool


def load(machine: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "statemachines" / f"{machine}.asl.json").read_text()))


def levels(machine: str) -> Iterator[Level]:
    def inside(where: str, part: dict[str, Any], branch: bool) -> Iterator[Level]:
        yield Level(machine, where, part["StartAt"], part["States"], branch)
        for name, state in part["States"].items():
            for number, inner in enumerate(state.get("Branches", [])):
                yield from inside(f"{where}/{name}[{number}]", inner, True)
            for key in ("ItemProcessor", "Iterator"):
                if key in state:
                    yield from inside(f"{where}/{name}", state[key], True)

    yield from inside(machine, load(machine), False)


LEVELS = [level for machine in MACHINES for level in levels(machine)]
STATES = [(level, name, state) for level in LEVELS for name, state in level.states.items()]
TASKS = [(level, name, state) for level, name, state in STATES if state["Type"] == "Task"]


def ident(value: Any) -> str:
    return value.where if isinstance(value, Level) else value if isinstance(value, str) else ""


def followers(state: dict[str, Any]) -> list[str]:
    ways = [state.get("Next"), state.get("Default")]
    ways += [rule["Next"] for rule in [*state.get("Choices", []), *state.get("Catch", [])]]
    return [way for way in ways if way]


def expressions(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith("{%"):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from expressions(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from expressions(entry)


def literal_bound(condition: str) -> tuple[str, int] | None:
    """The counter and how many tries a condition allows: `... .tries < 90`; None when it bounds nothing."""
    if " or " in condition:
        return None
    found = re.search(r"\$states\.input\.(\w+)\.tries < (\d+)\b", condition)
    return (found[1], int(found[2])) if found else None


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_has_a_time_out_and_speaks_jsonata(machine: str) -> None:
    document = load(machine)
    assert type(document["TimeoutSeconds"]) is int and 0 < document["TimeoutSeconds"] <= 86_400
    assert document["QueryLanguage"] == "JSONata"
    assert "QueryLanguage" not in json.dumps(document["States"])


@pytest.mark.parametrize(("level", "name", "state"), TASKS, ids=ident)
def test_a_task_is_bounded_retried_and_caught(level: Level, name: str, state: dict[str, Any]) -> None:
    assert type(state["TimeoutSeconds"]) is int and state["TimeoutSeconds"] > 0
    last = state["Retry"][-1]
    assert last["ErrorEquals"] == ["States.ALL"] and last["JitterStrategy"] == "FULL"
    assert 0 < last["MaxAttempts"] <= 20 and last["MaxDelaySeconds"] <= 120
    for rule in state["Retry"][:-1]:
        assert rule == {"ErrorEquals": ["States.Timeout"], "MaxAttempts": 0}, "a callback alone may time out"
        assert state["Resource"].endswith(".waitForTaskToken")
    assert state["Catch"][-1]["ErrorEquals"] == ["States.ALL"]
    assert state["Resource"] in (
        "arn:aws:states:::lambda:invoke",
        "arn:aws:states:::lambda:invoke.waitForTaskToken",
    )


@pytest.mark.parametrize(("level", "name", "state"), TASKS, ids=ident)
def test_a_callback_has_a_state_that_looks_slowly(level: Level, name: str, state: dict[str, Any]) -> None:
    if not state["Resource"].endswith(".waitForTaskToken"):
        return
    fallback = level.states[state["Catch"][-1]["Next"]]
    assert fallback["Resource"] == "arn:aws:states:::lambda:invoke"
    assert fallback["Arguments"]["FunctionName"] == state["Arguments"]["FunctionName"]
    assert "token" not in fallback["Arguments"]["Payload"]
    waits = [
        s for s in level.states.values() if s["Type"] == "Wait" and s["Next"] == state["Catch"][-1]["Next"]
    ]
    assert [wait["Seconds"] for wait in waits] and all("$min([300, 15 *" in w["Seconds"] for w in waits)


@pytest.mark.parametrize(("level", "name", "state"), STATES, ids=ident)
def test_a_choice_is_a_question_with_a_default(level: Level, name: str, state: dict[str, Any]) -> None:
    assert (state["Type"] == "Choice") == name.endswith("?")
    assert (state["Type"] == "Choice") == ("Default" in state)


@pytest.mark.parametrize("level", LEVELS, ids=ident)
def test_every_state_is_reached_and_every_way_leads_somewhere(level: Level) -> None:
    seen, open_ends = {level.start}, [level.start]
    while open_ends:
        for following in followers(level.states[open_ends.pop()]):
            if following not in seen:
                seen.add(following)
                open_ends.append(following)
    assert seen == set(level.states)
    for name, state in level.states.items():
        ends = state.get("End") or state["Type"] in ("Succeed", "Fail") or followers(state)
        assert ends, f"{name} leads nowhere"


def cycles(level: Level) -> list[list[str]]:
    """Every simple cycle of a level, each once."""
    found: list[list[str]] = []

    def walk(path: list[str]) -> None:
        for following in followers(level.states[path[-1]]):
            if following == path[0]:
                found.append(path)
            elif following not in path and following > path[0]:
                walk([*path, following])

    for name in level.states:
        walk([name])
    return found


def bound_of(level: Level, cycle: list[str]) -> int:
    return guard_of(level, cycle)[1]


def bound_of_counter(level: Level, counter: str, choice: str) -> int:
    """The largest bound of this counter in a Choice, 1 where there is none."""
    rules = [literal_bound(rule["Condition"]) for rule in level.states.get(choice, {}).get("Choices", [])]
    return max((bound for found, bound in filter(None, rules) if found == counter and bound < 10), default=1)


def guard_of(level: Level, cycle: list[str]) -> tuple[str, int]:
    """The counter and the tries that guard this cycle: its Choice goes on only while the counter is below a
    literal; the one that allows the fewest rounds."""
    bounds = []
    for name, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        state = level.states[name]
        if state["Type"] != "Choice":
            continue
        rules = [literal_bound(rule["Condition"]) for rule in state["Choices"] if rule["Next"] == following]
        if rules and state["Default"] != following and None not in rules:
            bounds.append(max((rule for rule in rules if rule is not None), key=lambda rule: rule[1]))
    assert bounds, f"nothing bounds the cycle {' -> '.join(cycle)}"
    return min((bound, counter) for counter, bound in bounds)[::-1]


@pytest.mark.parametrize("level", LEVELS, ids=ident)
def test_every_cycle_counts_its_tries(level: Level) -> None:
    for cycle in cycles(level):
        bound_of(level, cycle)
        counting = [
            level.states[n] for n in cycle if ".tries" in json.dumps(level.states[n].get("Output", ""))
        ]
        counters = [re.search(r"'(\w+)': \$merge", state["Output"]) for state in counting]
        guards = json.dumps([level.states[n] for n in cycle if level.states[n]["Type"] == "Choice"])
        assert any(counter and f"$states.input.{counter[1]}.tries <" in guards for counter in counters)
        waits = any(level.states[n]["Type"] == "Wait" for n in cycle)
        assert waits or bound_of(level, cycle) <= 3, "a cycle without a wait is a hot loop"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_longest_history_stays_far_below_the_limit(machine: str) -> None:
    """Every state once with all its retries, and the longest cycle of every counter to its bound with one
    retry in each round; all of it once more for every step of the ladder, which begins anew."""
    total, rounds, again = 0, 1, 0
    for level in levels(machine):
        for state in level.states.values():
            retries = state["Retry"][-1]["MaxAttempts"] if state["Type"] == "Task" else 0
            total += STATE_EVENTS[state["Type"]] + RETRY_EVENTS * retries
        longest: dict[str, int] = {}
        for cycle in cycles(level):
            once = sum(STATE_EVENTS[level.states[name]["Type"]] for name in cycle) + RETRY_EVENTS
            counter, bound = guard_of(level, cycle)
            if counter == "climbed":
                rounds = bound
            else:
                longest[counter] = max(longest.get(counter, 0), once * bound)
        # A repair launches nothing, and only the first step of the ladder is a reset or waits at work.
        again += sum(longest.pop(counter, 0) for counter in ("first", "launch", "reset"))
        total += sum(longest.values())
        # A replacement after a lost one has all its tries anew; only the last step of the ladder has any.
        others = bound_of_counter(level, "rounds", "Launched again?") - 1
        again += others * sum(longest.get(counter, 0) for counter in ("ready", "check", "admission"))
    assert total * rounds + again < HISTORY_LIMIT


@pytest.mark.parametrize("level", [level for level in LEVELS if level.branch], ids=ident)
def test_a_branch_assigns_nothing_and_ends_with_a_result(level: Level) -> None:
    for name, state in level.states.items():
        assert "Assign" not in json.dumps(state), f"{name}: Assign in a branch leaks on the emulator"
        assert state["Type"] != "Fail", f"{name}: a branch never fails"
        if state.get("End"):
            assert state["Type"] == "Pass" and re.search(r"['\"]result['\"]:", json.dumps(state["Output"]))


@pytest.mark.parametrize(("level", "name", "state"), STATES, ids=ident)
def test_a_parallel_has_no_output_of_its_own(level: Level, name: str, state: dict[str, Any]) -> None:
    if state["Type"] == "Parallel":
        assert not {"Output", "Assign", "Arguments"} & set(state), "the emulator passes over them"


@pytest.mark.parametrize("machine", MACHINES)
def test_no_machine_names_an_error_class_of_ours(machine: str) -> None:
    for _, name, state in (entry for entry in STATES if entry[0].machine == machine):
        for rule in [*state.get("Retry", []), *state.get("Catch", [])]:
            assert all(error.startswith("States.") for error in rule["ErrorEquals"]), name
    text = (ROOT / "statemachines" / f"{machine}.asl.json").read_text()
    assert not [word for word in ERRORS if re.search(rf"\b{word}\b", text)]


def test_the_placeholders_are_exactly_the_functions_that_tasks_run() -> None:
    used = {name for path in FILES for name in re.findall(r"\$\{([^}]+)\}", path.read_text())}
    handlers = {
        path.stem
        for path in (ROOT / "lambdas").glob("*.py")
        if re.search(r"^@task\ndef handler\(", path.read_text(), re.MULTILINE)
    }
    assert used - {"notices"} == handlers


@pytest.mark.parametrize("machine", MACHINES)
def test_the_comment_shows_a_document_that_the_machine_accepts(machine: str) -> None:
    comment = load(machine)["Comment"]
    found = re.search(r"\{.*?\}", comment)
    assert found, "the Comment shows no example"
    example = json.loads(found[0])
    assert EXAMPLES[machine](example).reason == example["reason"]
    with pytest.raises(InvalidInput, match="a right document is") as refused:
        EXAMPLES[machine]({**example, "nonsense": 1})
    shown = json.loads(str(refused.value).partition("a right document is ")[2])
    assert shown == example


@pytest.mark.parametrize(("level", "name", "state"), STATES, ids=ident)
def test_expressions_only_select_compare_and_merge(level: Level, name: str, state: dict[str, Any]) -> None:
    own = {key: value for key, value in state.items() if key != "Branches"}
    for text in expressions(own):
        assert text.endswith("%}")
        inner = re.sub(r"'[^']*'", "''", text[2:-2])
        assert set(re.findall(r"\$(\w+)\(", inner)) <= FUNCTIONS, text
        assert not re.search(r":=|function|λ|~>|\$\$|;|\^\(|/\w*/[im]?|\[\s*\$", inner.replace("([", "(")), (
            text
        )
        roots = set(re.findall(r"\$states\.(\w+)", inner))
        allowed = {"input", "context"} | ({"result"} if state["Type"] == "Task" else set())
        assert roots <= allowed | {"errorOutput"}, text
        if "errorOutput" in roots:
            assert text in json.dumps(state.get("Catch", []), ensure_ascii=False)
    assert not list(expressions(state.get("TimeoutSeconds")))


@pytest.mark.parametrize(("level", "name", "state"), TASKS, ids=ident)
def test_a_task_hands_over_references_only(level: Level, name: str, state: dict[str, Any]) -> None:
    payload = state["Arguments"]["Payload"]
    whole = [key for key, value in payload.items() if value == "{% $states.input %}"]
    assert whole == (["document"] if name == "Begin" else [])


@pytest.mark.parametrize("machine", MACHINES)
def test_escalation_closes_first_and_then_fails(machine: str) -> None:
    states = load(machine)["States"]
    assert states["Escalate"]["Arguments"]["Payload"]["outcome"] == "ESCALATED"
    assert states["Escalated"]["Type"] == "Fail"
    before = [name for name, state in states.items() if "Escalated" in followers(state)]
    assert set(before) <= {"Escalate", "Escalation recorded?"}


# --- transitions, counted by walking ---------------------------------------------------------------


def started(world: World, machine: str) -> int:
    """State transitions of all executions of this machine, the start of each included."""
    return sum(len(r.states) + 1 for r in world.driver.records.values() if r.machine == machine)


@pytest.mark.parametrize("story", ["xid", "spot", "reboot"])
def test_a_recovery_takes_at_most_60_transitions(build: Callable[[], World], story: str) -> None:  # noqa: F811
    world = build()
    if story == "spot":
        world.interrupt(NODES[1])
    elif story == "xid":
        world.send(events.xid(NODES[1], 79, world.now - 1))
    else:
        world.start("heal_node", {"node_id": NODES[1], "action": "reboot"})
    world.run()
    world.assert_healed(replaced=0 if story == "reboot" else 1, resumed=1)
    assert started(world, "heal_node") + started(world, "resume_job") <= 60


def test_a_boot_of_fifteen_minutes_costs_no_transitions(build: Callable[[], World]) -> None:  # noqa: F811
    world = build()
    world.boots = False
    world.send(events.xid(NODES[1], 79, world.now - 1))
    world.run(until=lambda: bool(world.node(NODES[1]).get("replacement_id")))
    world.at(900, lambda: setattr(world, "boots", True) or world._boot(world.launched[0]))  # type: ignore[func-returns-value]
    world.run(2000)
    world.assert_healed(replaced=1, resumed=1)
    assert started(world, "heal_node") + started(world, "resume_job") <= 60


# --- other people's validators ------------------------------------------------------------------------


def validator() -> Path | None:
    """asl-validator's command: in the repository's node_modules, or one that PATH knows."""
    for folder in (ROOT, *ROOT.parents):
        command = folder / "node_modules/.bin/asl-validator"
        if command.exists():
            return command
    found = shutil.which("asl-validator")
    return Path(found) if found else None


def filled(machine: str) -> str:
    text = (ROOT / "statemachines" / f"{machine}.asl.json").read_text()
    function = "arn:aws:lambda:us-east-1:111122223333:function:planaria-demo-"
    return re.sub(r"\$\{(\w+)\}", lambda match: function + match[1], text)


@pytest.mark.parametrize("machine", MACHINES)
def test_asl_validator_is_content(machine: str, tmp_path: Path) -> None:
    command = validator()
    if command is None or shutil.which("node") is None:
        pytest.skip("cdk: the npm packages (asl-validator among them) or node are not installed")
    path = tmp_path / f"{machine}.json"
    path.write_text(filled(machine))
    run = subprocess.run(
        [str(command), "--json-path", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.needs("emulator")
def test_validate_state_machine_definition_is_content(emulator: Any) -> None:
    client = emulator.client("stepfunctions")
    for machine in MACHINES:
        answer = client.validate_state_machine_definition(definition=filled(machine), type="STANDARD")
        assert (answer["result"], answer["diagnostics"]) == ("OK", []), machine
