from pathlib import Path
from typing import Any

import pytest
import yaml

from planaria.core.errors import InvalidInput
from planaria.sandbox.job_recipe import TrainingConfig, parse_job_recipe

RECIPES = Path(__file__).resolve().parents[2] / "recipes/jobs"


def test_the_demo_recipe_is_the_default_written_out() -> None:
    recipe = parse_job_recipe(yaml.safe_load((RECIPES / "gpt-demo.yaml").read_text()))
    assert (recipe.name, recipe.world_size) == ("gpt-demo", 4)
    assert recipe.training == TrainingConfig()


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (None, "recipe: must be a mapping, got NoneType"),
        ({}, "recipe: name is missing"),
        ({"name": ""}, "recipe: name must be a non-empty text, got ''"),
        ({"name": "x", "nodes": 0}, "recipe: nodes must be at least 1, got 0"),
        ({"name": "x", "nodes": True}, "recipe: nodes must be a whole number, got True"),
        ({"name": "x", "nodes": 1.5}, "recipe: nodes must be a whole number, got 1.5"),
        ({"name": "x", "training": []}, "recipe: training: must be a mapping, got list"),
        (
            {"name": "x", "training": {"learning_rate": "3e-3"}},
            "recipe: training: learning_rate must be a number, got '3e-3'",
        ),
        (
            {"name": "x", "training": {"model": {"dropout": 1}}},
            "recipe: training: model: dropout must be at least 0 and below 1, got 1",
        ),
        (
            {"name": "x", "training": {"model": {"heads": 5}}},
            "recipe: training.model: width 96 is no multiple of heads 5",
        ),
        (
            {"name": "x", "trainning": {}},
            "recipe: unknown key 'trainning'; known are name, nodes, ranks_per_node, training",
        ),
        (
            {"name": "x", "training": {"seed": float("nan")}},
            "recipe: training: seed must be a whole number, got nan",
        ),
    ],
)
def test_a_mistake_is_named_in_one_sentence(document: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_job_recipe(document)
    assert str(refused.value) == sentence
