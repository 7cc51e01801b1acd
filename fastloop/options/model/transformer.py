"""`model=transformer`: a small causal language model, for dataset=tokens."""

from __future__ import annotations

from pydantic import PositiveInt, model_validator
from torch import Tensor, arange, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from fastloop.core.types import Leaves, option
from fastloop.options.model._inputs import describe_sample, unfit_error


class TransformerBlock(nn.Module):
    """A pre-norm transformer block: causal self-attention and an MLP with residual connections.

    width: size of a token's vector, a multiple of `heads`. heads: number of attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) -> (batch, tokens, width)."""
        attention_norm, mlp_norm = self.norms
        # One linear layer for queries, keys and values: one matrix product instead of three.
        parts = self.queries_keys_values(attention_norm(x)).chunk(3, dim=-1)
        heads = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        attended = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.projection(attended)
        return x + self.contract(gelu(self.expand(mlp_norm(x))))


class LanguageModel(nn.Module):
    """A causal language model with an output in the layout that cross_entropy takes.

    vocabulary: number of token ids. block_size: maximum number of tokens of an input. width: size
    of a token's vector.
    """

    def __init__(
        self, vocabulary: int, block_size: int, width: int, blocks: list[TransformerBlock]
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for layer in (self.tokens, self.positions, self.head):
            nn.init.normal_(
                layer.weight, std=0.02
            )  # as in GPT-2: the first loss is that of a random guess

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, tokens) int64 token ids -> (batch, vocabulary, tokens) logits."""
        positions = arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        return self.head(self.norm(self.blocks(x))).transpose(1, 2)


@option
class Transformer:
    """A small decoder like GPT-2, without dropout, for dataset=tokens.

    The logits take batch x tokens x vocabulary floats: with dataset.block_size=256 and GPT-2's
    vocabulary 51 MB per sample, so use small batches.
    """

    vocabulary: PositiveInt
    """Number of token ids."""
    width: PositiveInt
    """Width of the embedding, a multiple of `heads`."""
    layers: PositiveInt
    """Number of transformer blocks."""
    heads: PositiveInt
    """Number of attention heads of each block."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Transformer:
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads}: width={self.width} is not a multiple of it")
        return self

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported if the samples are not (tokens, next tokens) pairs.

        sample: dtype and shape of each leaf; None: not known yet, so only the classes are checked.
        """
        got = "samples with classes" if num_classes else ""
        if sample and (len({*sample}) != 1 or len(sample) != 2 or not _are_tokens(sample[0])):
            got = describe_sample(sample)
        if got:
            raise unfit_error("transformer", "(int64 tokens, int64 next tokens)", got)

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:  # noqa: ARG002
        """A new network: (batch, tokens) -> (batch, vocabulary, tokens).

        input_shape: (tokens,), the shape of a sample's input. num_classes: not used.
        """
        blocks = [TransformerBlock(self.width, self.heads) for _ in range(self.layers)]
        return LanguageModel(self.vocabulary, input_shape[0], self.width, blocks)


def _are_tokens(leaf: tuple[str, tuple[int, ...]]) -> bool:
    return leaf[0] == "int64" and len(leaf[1]) == 1
