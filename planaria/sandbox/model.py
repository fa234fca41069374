"""A small GPT over characters, in plain PyTorch."""

import torch.nn.functional as F
from torch import Tensor, nn

from planaria.sandbox.job_recipe import ModelShape


class Block(nn.Module):
    """Pre-norm attention and MLP on (batch, context, width)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attention_norm = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        packed = self.queries_keys_values(self.attention_norm(x))
        q, k, v = packed.view(batch, context, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, context, width)
        x = x + self.dropout(self.attention_out(mixed))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


class CharacterGPT(nn.Module):
    """Character indices (batch, context) -> logits (batch, context, alphabet)."""

    def __init__(self, shape: ModelShape, alphabet: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, alphabet, bias=False)
        # Embeddings of PyTorch's default size (standard deviation 1) drown the residual stream.
        for table in (self.characters, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, indices: Tensor) -> Tensor:
        x = self.characters(indices) + self.positions.weight[: indices.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.logits(self.norm(x))
        return logits


def loss_of(model: CharacterGPT, sequences: Tensor) -> Tensor:
    """Mean cross entropy in nats of predicting each next character; sequences: (batch, context + 1)."""
    logits = model(sequences[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
