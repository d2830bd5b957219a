"""A llama GGUF file as an ordinary mlx-lm model folder, without loss.

`mx.load` gives Q4_1 and Q8_0 tensors as MLX affine quantisation (group 32), value for value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from ..errors import UnsupportedError

GROUP_SIZE = 32
_CONTROL = 3  # GGUF's token type for special tokens
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, out: Path, progress: Callable[[float], None]) -> None:
    """Write weights, config and tokenizer of `source` into the folder `out`.

    Args:
        source: a GGUF file of a llama model with a GPT-2 byte-level tokenizer.
        out: an existing empty folder.
        progress: told the share that is done, 0 to 1.

    Raises:
        UnsupportedError: another architecture or tokenizer.
    """
    tensors, metadata = mx.load(str(source), return_metadata=True)
    reader = _Metadata(metadata)
    progress(0.1)
    weights = _rename(tensors, reader)
    mx.eval(weights)
    progress(0.3)
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    progress(0.7)
    _write_json(out / "config.json", _config(weights, reader))
    _write_tokenizer(out, reader)
    progress(1.0)


class _Metadata:
    """Typed access to GGUF metadata."""

    def __init__(self, metadata: dict[str, Any]):
        self._metadata = metadata
        if self["general.architecture"] != "llama" or self["tokenizer.ggml.model"] != "gpt2":
            raise UnsupportedError("only llama GGUF files with a GPT-2 tokenizer can be converted")

    def __getitem__(self, key: str) -> Any:
        value = self._metadata[key]
        return value.tolist() if isinstance(value, mx.array) else value

    def llama(self, key: str) -> Any:
        return self[f"llama.{key}"]

    def token(self, key: str) -> Any:
        return self[f"tokenizer.ggml.{key}"]


def _rename(tensors: dict[str, mx.array], reader: _Metadata) -> dict[str, mx.array]:
    heads = {
        "attn_q": reader.llama("attention.head_count"),
        "attn_k": reader.llama("attention.head_count_kv"),
    }
    weights = {}
    for name, tensor in tensors.items():
        match name.split("."):
            case ["blk", layer, part, kind]:
                if part in heads:
                    tensor = _unpermute(tensor, heads[part])
                weights[f"model.layers.{layer}.{_LAYER[part]}.{kind}"] = tensor
            case [part, kind]:
                weights[f"{_TOP[part]}.{kind}"] = tensor
    # One 16-bit format throughout: norms are float32 in a GGUF.
    return {k: w if w.dtype == mx.uint32 else w.astype(mx.float16) for k, w in weights.items()}


def _unpermute(rows: mx.array, heads: int) -> mx.array:
    """Undo llama.cpp's interleaving of the rotary halves; works on quantised rows as they are."""
    return (
        rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
    )


def _config(weights: dict[str, mx.array], reader: _Metadata) -> dict[str, Any]:
    hidden, heads = reader.llama("embedding_length"), reader.llama("attention.head_count")
    quantization: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": 4, "mode": "affine"}
    for name, scales in weights.items():
        if name.endswith(".scales"):
            layer = name.removesuffix(".scales")
            bits = weights[f"{layer}.weight"].shape[1] * 32 // (scales.shape[1] * GROUP_SIZE)
            if bits != quantization["bits"]:
                override = {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}
                quantization[layer] = override
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": reader.llama("block_count"),
        "intermediate_size": reader.llama("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.llama("attention.head_count_kv"),
        "head_dim": hidden // heads,
        "rms_norm_eps": round(reader.llama("attention.layer_norm_rms_epsilon"), 10),
        "vocab_size": reader.llama("vocab_size"),
        "rope_theta": reader.llama("rope.freq_base"),
        "max_position_embeddings": reader.llama("context_length"),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "hidden_act": "silu",
        "bos_token_id": reader.token("bos_token_id"),
        "eos_token_id": reader.token("eos_token_id"),
        "pad_token_id": reader.token("padding_token_id"),
        "torch_dtype": "float16",
        "quantization": quantization,
        "quantization_config": quantization,
    }


def _write_tokenizer(out: Path, reader: _Metadata) -> None:
    tokens = reader.token("tokens")
    merges = [tuple(merge.split(" ")) for merge in reader.token("merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, reader.token("token_type"), strict=True)
        if kind == _CONTROL
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(out / "tokenizer.json"))
    named = {
        f"{name}_token": tokens[reader.token(f"{key}_token_id")]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": reader.llama("context_length"),
        "chat_template": reader["tokenizer.chat_template"],
    }
    _write_json(out / "tokenizer_config.json", settings)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
