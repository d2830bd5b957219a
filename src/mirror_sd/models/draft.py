"""The DFlash draft in MLX (arXiv 2602.06036).

It has no embedding and no head of its own: it maps the target's embeddings of a block, and context
features tapped from the target, to hidden states that the target's head turns into logits.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import initialize_rope

from ..caches.context import ContextCache
from .dflash2 import CandidateSelector, Draw, DynamicConv, Selection
from .draft_config import SLIDING, DraftConfig


class DraftAttention(nn.Module):
    """Attention of a block to the context and itself, with RMSNorm on each head's Q and K."""

    def __init__(self, config: DraftConfig, sliding: bool):
        super().__init__()
        dim, bias = config.hidden_size, config.attention_bias
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.scale = config.head_dim**-0.5
        self.window = config.sliding_window if sliding else None
        self.causal = sliding if config.is_causal is None else config.is_causal
        self.q_proj = nn.Linear(dim, config.num_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, config.num_kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, dim, bias=bias)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.rope = initialize_rope(
            config.head_dim,
            config.rope_theta,
            traditional=False,
            scaling_config=config.rope_scaling,
            max_position_embeddings=config.max_position_embeddings,
        )

    def extend(self, context: mx.array, cache: ContextCache) -> None:
        """Add context rows [1, n, H]. They pass this layer's K and V, but not its input norm."""
        cache.append(*self.keys_values(context, cache.length))

    def __call__(self, x: mx.array, cache: ContextCache) -> mx.array:
        """Block rows [1, b, H], already normed; the block starts behind the context."""
        queries = self.q_norm(self._heads(self.q_proj(x), self.num_heads))
        queries = self.rope(queries, offset=cache.length)
        keys, values = cache.with_block(*self.keys_values(x, cache.length))
        mask = self._mask(x.shape[1], cache.visible)
        out = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self.scale, mask=mask
        )
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))

    def _mask(self, block: int, context: int) -> mx.array | str | None:
        """Which of the context's and the block's keys each block row sees, [b, context + b]."""
        if self.window is None:
            return "causal" if self.causal else None  # causal to the end: the context is all seen
        rows = mx.arange(block)[:, None]
        keys = mx.arange(-context, block)[None]
        in_block = keys >= 0
        seen = in_block | (rows - keys < self.window)
        return seen & (keys <= rows) if self.causal else seen

    def keys_values(self, x: mx.array, position: int) -> tuple[mx.array, mx.array]:
        """[1, heads, n, d] of rows [1, n, H] that stand at `position` and behind."""
        keys = self.k_norm(self._heads(self.k_proj(x), self.num_kv_heads))
        values = self._heads(self.v_proj(x), self.num_kv_heads)
        return self.rope(keys, offset=position), values

    @staticmethod
    def _heads(x: mx.array, heads: int) -> mx.array:
        """[1, n, heads * d] to [1, heads, n, d]."""
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


class DraftMLP(nn.Module):
    """Gated SiLU."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        dim, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(dim, inner, bias=False)
        self.up_proj = nn.Linear(dim, inner, bias=False)
        self.down_proj = nn.Linear(inner, dim, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        """[1, b, H] to [1, b, H]."""
        return self.down_proj(nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DraftLayer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, config: DraftConfig, sliding: bool):
        super().__init__()
        self.self_attn = DraftAttention(config, sliding)
        self.mlp = DraftMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, cache: ContextCache) -> mx.array:
        """[1, b, H] to [1, b, H]."""
        x = x + self.self_attn(self.input_layernorm(x), cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class ConvLayer(DraftLayer):
    """A layer of DFlash 2: each sublayer stands between two dynamic convolutions."""

    def __init__(self, config: DraftConfig, sliding: bool):
        super().__init__(config, sliding)
        assert config.dflash2 is not None
        self.attention_conv = DynamicConv(config.hidden_size, config.dflash2)
        self.mlp_conv = DynamicConv(config.hidden_size, config.dflash2)

    def __call__(self, x: mx.array, cache: ContextCache) -> mx.array:
        """[1, b, H] to [1, b, H]."""
        normed = self.input_layernorm(x)
        before, after = self.attention_conv.kernels(normed)
        out = self.self_attn(DynamicConv.convolve(normed, before), cache)
        x = x + DynamicConv.convolve(out, after)
        normed = self.post_attention_layernorm(x)
        before, after = self.mlp_conv.kernels(normed)
        return x + DynamicConv.convolve(self.mlp(DynamicConv.convolve(normed, before)), after)


class DFlashDraft(nn.Module):
    """A block-diffusion draft: one pass gives the hidden states of a whole block."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        self.config = config
        dim = config.hidden_size
        self.fc = nn.Linear(len(config.taps) * dim, dim, bias=False)
        self.hidden_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        layer = DraftLayer if config.dflash2 is None else ConvLayer
        self.layers = [layer(config, kind == SLIDING) for kind in config.layer_types]
        self.norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        if config.dflash2 is not None:
            self.candidate_selector = CandidateSelector(dim, config.vocab_size, config.dflash2)

    def make_context(self, window: int | None = None, sinks: int = 0) -> list[ContextCache]:
        """An empty context. `window` and `sinks` bound what full-attention layers see; a sliding
        layer sees `sliding_window - 1` rows besides each query's own.
        """
        sliding = (self.config.sliding_window or 1) - 1
        return [
            ContextCache(sliding) if kind == SLIDING else ContextCache(window, sinks)
            for kind in self.config.layer_types
        ]

    def extend(self, features: mx.array, context: list[ContextCache]) -> None:
        """Append committed tokens to the context.

        Args:
            features: [1, n, taps * H], the target's tapped outputs for these tokens.
            context: as `make_context` gave it; changed in place.
        """
        unseen = self._unseen(features.shape[1], context)
        if unseen:
            features = features[:, unseen:]
            for cache in context:
                cache.skip(unseen)
        projected = self.project(features)
        for layer, cache in zip(self.layers, context, strict=True):
            layer.self_attn.extend(projected, cache)

    def project(self, features: mx.array) -> mx.array:
        """Features [1, n, taps * H] to what every layer's K and V are given, [1, n, H]."""
        return self.hidden_norm(self.fc(features.astype(self.fc_dtype)))

    def __call__(self, embedded: mx.array, context: list[ContextCache]) -> mx.array:
        """Hidden states [1, b, H] after the final norm, of an embedded block [1, b, H]: the anchor
        and b - 1 mask tokens. Position k predicts the token k after the anchor.
        """
        *_, x = self.layer_outputs(self.enter(embedded), context)
        return self.norm(x)

    def layer_outputs(self, x: mx.array, context: list[ContextCache]) -> Iterator[mx.array]:
        """Hidden states [1, b, H] after every layer, of what the first is given."""
        for layer, cache in zip(self.layers, context, strict=True):
            x = layer(x, cache)
            yield x

    def enter(self, embedded: mx.array) -> mx.array:
        """What the first layer is given for a block that the target embedded, [1, b, H]."""
        x = embedded.astype(self.fc_dtype)
        return x if self.config.embedding_scale == 1.0 else x * self.config.embedding_scale

    def select(
        self,
        hidden: mx.array,
        logits: mx.array,
        anchor: int,
        draw: Draw,
        ids: mx.array | None = None,
    ) -> Selection:
        """The tokens to propose, by hidden states [n, H] and logits [n, N]: each position by
        itself, or DFlash 2's path through the likeliest few.

        Args:
            hidden: after the final norm.
            logits: the head's.
            anchor: the token before the first position.
            draw: (scores, offset of the first row, candidates or None) -> ids.
            ids: [N] the tokens that the logits stand for, None for the whole vocabulary.
        """
        if self.config.dflash2 is not None:
            return self.candidate_selector(hidden, logits, anchor, draw, ids)
        candidates = None if ids is None else mx.broadcast_to(ids, logits.shape)
        return Selection(draw(logits, 0, candidates), logits, candidates)

    @property
    def fc_dtype(self) -> mx.Dtype:
        """The format this draft computes in."""
        return self.hidden_norm.weight.dtype

    @staticmethod
    def _unseen(rows: int, context: list[ContextCache]) -> int:
        """How many of the first of `rows` new rows no layer will ever see."""
        if any(cache.window is None or cache.sinks for cache in context):
            return 0
        return max(0, rows - max(cache.window or 0 for cache in context))
