"""EC2 is asked once for all nodes of a delivery, and not again once it has failed to answer."""

import pytest

from lambdas.looking import Answers
from planaria.core.errors import TransientError
from planaria.core.ports import Instance
from tests.lambdas.world import NODES, World, stub


@pytest.fixture
def asked(world: World) -> list[list[str]]:
    """The ids of every DescribeInstances."""
    calls: list[list[str]] = []

    def describe(nodes: list[str]) -> list[Instance]:
        calls.append(list(nodes))
        return real(nodes)

    real = stub(world.fleet, "describe", describe)
    return calls


def test_one_question_for_all_nodes(world: World, asked: list[list[str]]) -> None:
    answers = Answers([NODES[2], NODES[0], NODES[2]])
    assert asked == []
    assert [i.node_id for i in answers.of(world.gw, NODES[0])] == [NODES[0]]
    assert [i.node_id for i in answers.of(world.gw, NODES[2])] == [NODES[2]]
    assert asked == [[NODES[0], NODES[2]]]


def test_a_node_that_the_delivery_did_not_name_is_asked_for_itself(
    world: World, asked: list[list[str]]
) -> None:
    answers = Answers([NODES[0]])
    answers.of(world.gw, NODES[0])
    assert [i.node_id for i in answers.of(world.gw, NODES[3])] == [NODES[3]]
    assert asked == [[NODES[0]], [NODES[3]]]


def test_what_ec2_could_not_answer_is_not_asked_again_in_this_delivery(world: World) -> None:
    calls = []

    def refuse(nodes: list[str]) -> list[Instance]:
        calls.append(nodes)
        raise TransientError("RequestLimitExceeded")

    stub(world.fleet, "describe", refuse)
    answers = Answers(NODES)
    for node in NODES:
        with pytest.raises(TransientError, match="RequestLimitExceeded"):
            answers.of(world.gw, node)
    assert len(calls) == 1
