"""Names of step directories, as frameworks write them."""

import pytest

from planaria.core.step_names import StepName, name_of, read, step_of


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-10", 10),
        ("step_10", 10),
        ("step10", 10),
        ("step-0010", 10),
        ("step=5", 5),
        ("checkpoint-500", 500),
        ("ckpt_3", 3),
        ("global_step500", 500),
        ("global_step_5", 5),
        ("iter_0000500", 500),
        ("iteration_5", 5),
        ("ep3-ba1000", 1000),
        ("ep3-ba1000-rank0", 1000),
        ("epoch=3-step=1000", 1000),
        ("epoch=3-step=1000.ckpt", 1000),
        ("model--val_loss=1.23-epoch=0-step=99-consumed_samples=3200.0-last", 99),
        ("epoch_3", 3),
    ],
)
def test_a_finished_step(name: str, step: int) -> None:
    assert read(name) == StepName(step)
    assert step_of(name) == step


@pytest.mark.parametrize(
    "name",
    [
        "step-10.tmp",
        "step-10.restore.tmp",
        "step-10.17.removed.tmp",
        "tmp-checkpoint-10",
        "iter_0000010.partial",
    ],
)
def test_an_unfinished_one(name: str) -> None:
    assert read(name) == StepName(10, unfinished=True)
    assert step_of(name) is None


@pytest.mark.parametrize(
    "name", ["step-", "step-x", "step--1", "step-1.5", "step-٣", f"step-{'9' * 200}", "checkpoint"]
)
def test_one_that_tells_no_number(name: str) -> None:
    assert read(name) == StepName(-1)
    assert step_of(name) is None


@pytest.mark.parametrize(
    "name", ["", "latest", "logs", "best", "1000", "stepping", "epochs", ".planaria", "a\nb"]
)
def test_other_things(name: str) -> None:
    assert read(name) is None


def test_our_own_name_is_read_again() -> None:
    assert step_of(name_of(500)) == 500
