"""A DFlash draft's config.json, from all the places where published drafts keep their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError, UnsupportedError

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class DFlash2Config:
    """What DFlash 2 adds.

    Attributes:
        conv_kernel_size: taps of the dynamic convolutions.
        conv_group_size: channels that share a predicted kernel.
        selector_rank: width of the selector's codebooks.
        selector_top_k: candidates per position.
    """

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True)
class DraftConfig:
    """What a DFlash draft is built from (arXiv 2602.06036).

    Attributes:
        taps: target layers whose outputs make up a context feature, in the order of `fc`'s input.
        block_size: anchor and drafted tokens together, as trained.
        mask_token_id: stands for a token to be drafted.
        num_target_layers: depth of the target it was trained for, if the config tells.
        layer_types: per draft layer, full or sliding attention to the context.
        sliding_window: rows a sliding layer sees, the query's own included; None without any.
        is_causal: whether block rows see only earlier block rows; None means that of the kind of
            layer: sliding layers do, full ones do not.
        embedding_scale: extra factor on embedded tokens, besides the target's own.
        output_multiplier: factor on the draft's logits.
        logit_softcap: the draft's logits are softcapped at this value; None leaves it to the
            target.
        dflash2: DFlash 2's additions, None for a plain DFlash draft.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    attention_bias: bool
    taps: tuple[int, ...]
    block_size: int
    mask_token_id: int
    num_target_layers: int | None
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: bool | None
    embedding_scale: float
    output_multiplier: float
    logit_softcap: float | None
    dflash2: DFlash2Config | None


def parse(config: dict[str, Any], where: str) -> DraftConfig:
    """Read a draft's config.

    Args:
        config: the JSON object.
        where: the file or repository, for messages.

    Raises:
        CheckpointError: a value is missing or makes no sense.
        UnsupportedError: a kind of draft that is not implemented.
    """
    return _Reader(config, where).read()


class _Reader:
    def __init__(self, config: dict[str, Any], where: str):
        self.where = where
        self.top = config
        self.nested = config.get("dflash_config") or {}
        self.rope = config.get("rope_parameters") or config.get("rope_scaling") or {}

    def read(self) -> DraftConfig:
        self._check_kind()
        heads = self.number("num_attention_heads")
        hidden, layers = self.number("hidden_size"), self.number("num_hidden_layers")
        layer_types = tuple(self.top.get("layer_types") or (FULL,) * layers)
        if len(layer_types) != layers or set(layer_types) - {FULL, SLIDING}:
            raise self.bad(f"layer_types {layer_types} does not describe {layers} layers")
        sliding = SLIDING in layer_types
        return DraftConfig(
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=self.number("num_key_value_heads", heads),
            head_dim=self.number("head_dim", hidden // heads),
            intermediate_size=self.number("intermediate_size"),
            vocab_size=self.number("vocab_size"),
            rms_norm_eps=float(self.top.get("rms_norm_eps", 1e-6)),
            rope_theta=self.rope_theta(),
            rope_scaling=self.rope_scaling(),
            max_position_embeddings=self.number("max_position_embeddings", 32768),
            attention_bias=bool(self.top.get("attention_bias", False)),
            taps=self.taps(),
            block_size=self.block_size(),
            mask_token_id=self.number("mask_token_id"),
            num_target_layers=self.optional("num_target_layers"),
            layer_types=layer_types,
            sliding_window=self.number("sliding_window") if sliding else None,
            is_causal=self.optional("is_causal"),
            embedding_scale=float(self.optional("input_embedding_scale") or 1.0),
            output_multiplier=float(self.optional("output_multiplier") or 1.0),
            logit_softcap=self.optional("final_logit_softcapping"),
            dflash2=self.dflash2(hidden),
        )

    def _check_kind(self) -> None:
        architecture = " ".join(self.top.get("architectures") or ())
        if architecture and "DFlash" not in architecture:
            raise self.bad(f"its architecture is {architecture}, not a DFlash draft")
        act = self.top.get("hidden_act", "silu")
        if act != "silu":
            raise UnsupportedError(f"{self.where}: hidden_act {act} is not supported, only silu")

    def optional(self, key: str) -> Any:
        """`dflash_config.key` if there, else the top-level `key`, else None."""
        return self.nested.get(key, self.top.get(key))

    def number(self, key: str, default: int | None = None) -> int:
        value = self.optional(key)
        if value is None:
            value = default
        if value is None:
            raise self.bad(f"no {key}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.bad(f"{key} is {value!r}, not a count")
        return value

    def taps(self) -> tuple[int, ...]:
        taps = self.optional("target_layer_ids")
        if not taps or not all(isinstance(tap, int) and tap >= 0 for tap in taps):
            raise self.bad(f"target_layer_ids is {taps!r}: a list of layer indices is required")
        return tuple(taps)

    def block_size(self) -> int:
        size = self.number("block_size")
        if size < 2:
            raise self.bad(f"block_size is {size}: a block holds an anchor and a drafted token")
        return size

    def dflash2(self, hidden_size: int) -> DFlash2Config | None:
        if "DFlash2" not in " ".join(self.top.get("architectures") or ()):
            return None
        fields = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        config = DFlash2Config(*(self.number(field) for field in fields))
        if not config.conv_group_size or hidden_size % config.conv_group_size:
            raise self.bad(
                f"conv_group_size {config.conv_group_size} does not divide {hidden_size}"
            )
        return config

    def rope_theta(self) -> float:
        theta = self.top.get("rope_theta", self.rope.get("rope_theta"))
        if theta is None:
            raise self.bad("no rope_theta, neither at the top level nor in rope_parameters")
        return float(theta)

    def rope_scaling(self) -> dict[str, Any] | None:
        kind = self.rope.get("rope_type") or self.rope.get("type") or "default"
        return None if kind == "default" else {**self.rope, "rope_type": kind}

    def bad(self, why: str) -> CheckpointError:
        return CheckpointError(f"the draft's config in {self.where} cannot be used: {why}")
