"""`model=transformer`: a small causal language model, for dataset=tokens."""

from __future__ import annotations

from pydantic import PositiveInt, model_validator
from torch import Tensor, arange, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from fastloop.network import shown, unfit
from fastloop.types import Leaves, option


class Block(nn.Module):
    """Causal attention and two layers, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) -> the same."""
        attention, layers = self.norms
        three = self.queries_keys_values(attention(x)).chunk(3, dim=-1)
        split = [one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in three]
        seen = scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.joined(seen)
        return x + self.narrow(gelu(self.wide(layers(x))))


class LanguageModel(nn.Module):
    """From tokens to what comes next, in the form that cross_entropy takes."""

    def __init__(self, vocabulary: int, block_size: int, width: int, blocks: list[Block]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for one in (self.tokens, self.positions, self.head):
            nn.init.normal_(one.weight, std=0.02)  # GPT-2's: the first loss is that of a guess

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) int64 -> (batch, vocabulary, tokens)."""
        places = arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


@option
class Transformer:
    """A decoder like GPT-2's, without dropout; the answers take batch x tokens x vocabulary floats.

    With dataset.block_size=256 and GPT-2's vocabulary these are 51 MB a sample: use small batches.
    """

    vocabulary: PositiveInt
    width: PositiveInt
    layers: PositiveInt
    heads: PositiveInt

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Transformer:
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads}: width={self.width} is no multiple of it")
        return self

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported where the samples are not (tokens, next tokens) pairs."""
        got = "samples with classes" if num_classes else ""
        if sample and (len({*sample}) != 1 or len(sample) != 2 or not _are_tokens(sample[0])):
            got = shown(sample)
        if got:
            raise unfit("transformer", "(int64 tokens, int64 next tokens)", got)

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:  # noqa: ARG002
        """A new network: (batch, tokens) -> (batch, vocabulary, tokens)."""
        blocks = [Block(self.width, self.heads) for _ in range(self.layers)]
        return LanguageModel(self.vocabulary, input_shape[0], self.width, blocks)


def _are_tokens(leaf: tuple[str, tuple[int, ...]]) -> bool:
    return leaf[0] == "int64" and len(leaf[1]) == 1
