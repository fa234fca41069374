"""What a rank of the training job holds: weights, moments, gradients, dice, and where it stands."""

import ctypes
import hashlib
import json
import math
from typing import Any

import torch
from torch import Tensor

from planaria.sandbox.job_recipe import TrainingConfig
from planaria.sandbox.model import CharacterGPT
from planaria.sandbox.text import ALPHABET, TEXT, encode


def number(*parts: object) -> int:
    """63 bits that depend on every part (JSON values), the same on every machine and Python version."""
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def batch_of(config: TrainingConfig, text: Tensor, step: int, rank: int) -> Tensor:
    """Sequences (batch, context + 1) of character indices: a function of (seed, step, rank) alone."""
    generator = torch.Generator().manual_seed(number(config.seed, "batch", step, rank))
    length = config.model.context + 1
    starts = torch.randint(len(text) - length + 1, (config.batch, 1), generator=generator)
    return text[starts + torch.arange(length)]


def weights_sha256(model: torch.nn.Module) -> str:
    """Hash over names, types, shapes and bytes of all weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        plain = tensor.detach().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        # Not numpy(): PyTorch works without NumPy, and so does this.
        digest.update(ctypes.string_at(plain.data_ptr(), plain.nbytes))
    return digest.hexdigest()


class TrainingState:
    """step: optimizer steps done. loss: of that step, mean over ranks, NaN before the first.

    summed: the gradients of all weights, one after the other, then the loss, then a flag; the weights'
    `grad` are views into it, so that one all-reduce per step carries everything, always in the same order.
    """

    def __init__(self, config: TrainingConfig, rank: int) -> None:
        self.config, self.rank = config, rank
        self.step, self.loss = 0, math.nan
        self.text = torch.tensor(encode(TEXT))
        torch.manual_seed(config.seed)
        self.model = CharacterGPT(config.model, len(ALPHABET))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.learning_rate, foreach=False)
        self.reseed(0)
        weights = list(self.model.parameters())
        self.summed = torch.zeros(sum(each.numel() for each in weights) + 2)
        offset = 0
        for each in weights:
            each.grad = self.summed[offset : offset + each.numel()].view_as(each)
            offset += each.numel()

    def reseed(self, step: int) -> None:
        """Fresh dice (dropout) for this rank from this step on."""
        torch.manual_seed(number(self.config.seed, "dropout", step, self.rank))

    def batch(self, step: int) -> Tensor:
        return batch_of(self.config, self.text, step, self.rank)

    def tensors(self) -> dict[str, Any]:
        """The state as nested dictionaries of tensors and nothing else, for torch.distributed.checkpoint.

        Weights and moments are equal on all ranks, so DCP shares the writing out among them; each rank
        adds its own generator. The data cursor is the step, since batches follow from it.
        """
        names: dict[Tensor, str] = {each: name for name, each in self.model.named_parameters()}
        return {
            "model": self.model.state_dict(),
            "optimizer": {names[each]: moments for each, moments in self.optimizer.state.items()},
            "generator": {f"rank-{self.rank}": torch.get_rng_state()},
            "cursor": torch.tensor([self.step, self.config.seed], dtype=torch.int64),
            "loss": torch.tensor(self.loss, dtype=torch.float64),
        }

    def room_for_moments(self) -> None:
        """Give the optimizer zeroed moments, so that `tensors` has a place for the saved ones."""
        for each in self.model.parameters():
            zeros = {"exp_avg": torch.zeros_like(each), "exp_avg_sq": torch.zeros_like(each)}
            self.optimizer.state[each] = {"step": torch.tensor(0.0), **zeros}
