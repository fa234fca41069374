"""The fault campaign on the emulator: every fault at every Task state of every machine, and its redrive.

    make campaign ARGS="-k 'fault_campaign and Admit'"

The cases are made from the ASL files and the stories of fault_cases.py. Eight run at a time, each in a
place of its own (a job of two nodes, campaign/slots.py, or a warm pool, campaign/pools.py); those of mode
`approve` and those about copies of checkpoints have a sandbox of their own each. What befalls a call is
done by a wrapper in the sandbox's code asset (fault_hook.py), by process death, real time and microburst in
front of the emulator.
"""

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import fault_cases
from tests.e2e.campaign.places import Case
from tests.e2e.campaign.run import Campaign
from tests.e2e.fault_cases import STORIES, Fault

pytestmark = [pytest.mark.campaign, pytest.mark.needs("emulator", "microburst")]

SEED = 7
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 * 2**30
CASES = [Case(fault_cases.story_name(task), task, fault) for task in fault_cases.tasks() for fault in Fault]
REDRIVES = [Case(name) for name in STORIES]


class Outcome(dict[Case, str]):
    """case -> "" or what was wrong. after: what the sandboxes as a whole were left with."""

    after: list[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where that can be had: each of some eighty Lambda workers unpacks 500 files."""
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        with tempfile.TemporaryDirectory(dir=MEMORY, prefix="planaria-") as made:
            yield Path(made)
    else:
        yield tmp_path_factory.mktemp("campaign")


@pytest.fixture(scope="module")
def outcome(request: pytest.FixtureRequest, folder: Path) -> Outcome:
    """All chosen cases of this module, run side by side."""
    mine = [item for item in request.session.items if item.path == Path(__file__)]
    params = [getattr(getattr(item, "callspec", None), "params", {}) for item in mine]
    chosen: list[Case] = list(dict.fromkeys(each["case"] for each in params if "case" in each))
    # Cases of one state wait for the same few Lambda workers: mixed, they get in each other's way less.
    random.Random(SEED).shuffle(chosen)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    began = time.monotonic()

    def tell(line: str) -> None:
        with capture.global_and_fixture_disabled():
            sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {line}\n")
            sys.stdout.flush()

    found, after = Outcome(), []
    for place in ("act", "ask", "sync"):
        cases = [case for case in chosen if sandbox_of(case) == place]
        campaign = Campaign(folder / place, place == "ask", cases, tell)
        campaign.run()
        found.update(campaign.results)
        after += campaign.after
    found.after = after
    return found


def sandbox_of(case: Case) -> str:
    """Where a person is asked, and where checkpoints are copied, the others would be disturbed."""
    story = STORIES[case.story]
    return "ask" if story.approve else "sync" if story.durable else "act"


def end_of(outcome: Outcome, case: Case) -> str:
    return outcome.get(case, "not run: every place was used up by cases before it")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_at_a_task_changes_no_end(outcome: Outcome, case: Case) -> None:
    assert end_of(outcome, case) == ""


@pytest.mark.parametrize("case", REDRIVES, ids=str)
def test_a_redrive_after_the_end_changes_nothing(outcome: Outcome, case: Case) -> None:
    assert end_of(outcome, case) == ""


def test_nothing_is_left_over(outcome: Outcome) -> None:
    """No open incident, no dead letter."""
    assert outcome.after == []


def test_every_task_is_tried() -> None:
    for task in fault_cases.tasks():
        fault_cases.story_of(task)
    assert fault_cases.left_over() == []
    assert {case.task for case in CASES} == set(fault_cases.tasks())
