"""What a person may write in recipes/jobs/*.yaml, and what the head asks of the rank server. No torch."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from planaria.core.errors import InvalidInput

T = TypeVar("T")


def _from(least: float, below: float = math.inf) -> dict[str, float]:
    return {"least": least, "below": below}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A character-level GPT. width is split over the heads; context is in characters."""

    layers: int = field(default=3, metadata=_from(1))
    heads: int = field(default=4, metadata=_from(1))
    width: int = field(default=96, metadata=_from(1))
    context: int = field(default=64, metadata=_from(2, below=2048))
    dropout: float = field(default=0.1, metadata=_from(0.0, below=1.0))


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What every rank of a job must agree on.

    steps: optimizer steps of the whole job. save_every: a checkpoint every so many steps and at the end.
    keep: complete checkpoints that are kept. batch: sequences per rank and step. step_seconds: shortest
    wall time of a step (0 = as fast as the machine can). timeout_seconds: how long a collective waits for
    a peer. nice: added to the ranks' niceness, so that the control plane on the same cores goes first.
    """

    steps: int = field(default=300, metadata=_from(1))
    save_every: int = field(default=20, metadata=_from(1))
    keep: int = field(default=3, metadata=_from(1))
    seed: int = field(default=7, metadata=_from(0))
    batch: int = field(default=8, metadata=_from(1))
    learning_rate: float = field(default=0.002, metadata=_from(0.0))
    step_seconds: float = field(default=0.0, metadata=_from(0.0))
    timeout_seconds: float = field(default=30.0, metadata=_from(1.0))
    nice: int = field(default=5, metadata=_from(0, below=20))
    model: ModelShape = field(default_factory=ModelShape)


@dataclass(frozen=True, slots=True)
class JobRecipe:
    """One training job: world size is nodes x ranks_per_node."""

    name: str
    nodes: int = field(default=4, metadata=_from(1))
    ranks_per_node: int = field(default=1, metadata=_from(1))
    training: TrainingConfig = field(default_factory=TrainingConfig)

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True)
class RankRequest:
    """One rank to fork. dir: the job's folder. pgid_of: pid of the leader of the node's process group.
    resume_step: the checkpoint to start from; -1 says that none was ever written."""

    job_id: str
    attempt: int = field(metadata=_from(1))
    rank: int = field(metadata=_from(0))
    world_size: int = field(metadata=_from(1))
    node_id: str
    pgid_of: int = field(metadata=_from(2))
    master_port: int = field(metadata=_from(1, below=65536))
    dir: str
    resume_step: int = field(metadata=_from(-1))
    config: TrainingConfig = field(default_factory=TrainingConfig)


def parse_job_recipe(document: Any, where: str = "recipe") -> JobRecipe:
    """A job recipe from the mapping that its YAML holds. Raises InvalidInput with one sentence."""
    return _checked(_build(JobRecipe, document, where), where)


def parse_rank_request(document: Any, where: str = "fork") -> RankRequest:
    """A fork request (the key `verb` is ignored). Raises InvalidInput with one sentence."""
    if isinstance(document, Mapping):
        document = {key: value for key, value in document.items() if key != "verb"}
    request = _build(RankRequest, document, where)
    if request.rank >= request.world_size:
        raise InvalidInput(f"{where}: rank {request.rank} is not below world_size {request.world_size}")
    if not Path(request.dir).is_absolute():
        raise InvalidInput(f"{where}: dir must be the absolute path of the job's folder, got {request.dir!r}")
    _check_model(request.config.model, f"{where}: config")
    return request


def _checked(recipe: JobRecipe, where: str) -> JobRecipe:
    _check_model(recipe.training.model, f"{where}: training")
    return recipe


def _check_model(shape: ModelShape, where: str) -> None:
    if shape.width % shape.heads:
        raise InvalidInput(f"{where}.model: width {shape.width} is no multiple of heads {shape.heads}")


def _build(kind: type[T], document: Any, where: str) -> T:
    if not isinstance(document, Mapping):
        raise InvalidInput(f"{where}: must be a mapping, got {type(document).__name__}")
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}
    for key in document:
        if key not in known:
            raise InvalidInput(f"{where}: unknown key {key!r}; known are {', '.join(sorted(known))}")
    values: dict[str, Any] = {}
    for name, each in known.items():
        if name in document:
            least, below = each.metadata.get("least", -math.inf), each.metadata.get("below", math.inf)
            values[name] = _value(hints[name], document[name], f"{where}: {name}", least, below)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise InvalidInput(f"{where}: {name} is missing")
    return kind(**values)


def _value(kind: Any, value: Any, where: str, least: float, below: float) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, where)
    if kind is str:
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"{where} must be a non-empty text, got {value!r}")
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (kind is int and value != int(value)):
        raise InvalidInput(
            f"{where} must be {'a whole number' if kind is int else 'a number'}, got {value!r}"
        )
    if not least <= value < below:
        limit = f"at least {least:g}" + ("" if below == math.inf else f" and below {below:g}")
        raise InvalidInput(f"{where} must be {limit}, got {value!r}")
    return kind(value)
