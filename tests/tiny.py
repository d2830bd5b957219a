"""Tiny random models with real configs, and drafters that follow a script."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mirror_sd.decoding.drafter import Streamed
from mirror_sd.decoding.proposal import Draw, Proposal
from mirror_sd.decoding.work import Report
from mirror_sd.models.draft import DFlashDraft
from mirror_sd.models.draft_config import parse
from mirror_sd.models.target import TargetModel

VOCAB = 263  # 256 bytes, four special tokens, and three that no text has: an odd vocabulary
EOS = 257

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": EOS,
}
DRAFT: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "block_size": 6,
    "num_target_layers": 4,
    "dflash_config": {"target_layer_ids": [0, 1, 3], "mask_token_id": 260},
}


def config(**changes: Any) -> dict[str, Any]:
    """The tiny Llama's config with changes; a value of None removes the key."""
    merged = {**LLAMA, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def model(settings: dict[str, Any], seed: int = 1) -> nn.Module:
    """A random mlx-lm model whose logits are spread enough that its choices vary."""
    mx.random.seed(seed)
    model_class, args_class = _get_classes(settings)
    built = model_class(args_class.from_dict(settings))

    def spread(array: mx.array) -> mx.array:
        if not mx.issubdtype(array.dtype, mx.floating):
            return array
        if array.ndim < 2:
            return array + 0.1 * mx.random.normal(array.shape)
        return mx.random.normal(array.shape) * (1.2 / array.shape[-1] ** 0.5)

    built.update(tree_map(spread, built.parameters()))
    built.eval()
    mx.eval(built.parameters())
    return built


def target(**changes: Any) -> TargetModel:
    """A tiny Llama as a target."""
    settings = config(**changes)
    return TargetModel(model(settings), settings, "tiny")


def draft(seed: int = 2, **changes: Any) -> DFlashDraft:
    """A random draft for the tiny Llama: it runs, and is hardly ever right."""
    mx.random.seed(seed)
    built = DFlashDraft(parse({**DRAFT, **changes}, "tiny draft"))
    mx.eval(built.parameters())
    return built


def write_target(folder: Path, **changes: Any) -> Path:
    """A tiny Llama as a checkpoint with a byte tokenizer and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = config(**changes)
    weights = dict(tree_flatten(model(settings).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(settings))
    _write_tokenizer(folder)
    return folder


def write_draft(folder: Path, **changes: Any) -> Path:
    """A random draft as a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(draft(**changes).parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    (folder / "config.json").write_text(json.dumps({**DRAFT, **changes}))
    return folder


def _write_tokenizer(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<start>", "<end>", "<user>", "<bot>"]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}{{ '<user>' if m.role == 'user' else '<bot>' }}"
        "{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


class ScriptedDrafter:
    """Right for as many tokens as the script says, then wrong: every acceptance pattern.

    Args:
        answer: what plain decoding says.
        prompt: length of the prompt.
        script: how many drafted tokens are right in each cycle, over and over.
        longest: the most tokens it proposes.
        taps: asks the target for features, which are kept.
    """

    name = "scripted"

    def __init__(
        self,
        answer: Sequence[int],
        prompt: int,
        script: Iterable[int],
        longest: int,
        taps: tuple[int, ...] = (),
    ):
        self.taps = taps
        self.longest = longest
        self.length = 0
        self.features: list[mx.array] = []
        self.proposals: list[int] = []
        self._answer = list(answer)
        self._prompt = prompt
        self._script = list(script)
        self._cycle = 0

    def extend(self, tokens: Sequence[int], features: mx.array | None, said: bool = False) -> None:
        self.length += len(tokens)
        if self.taps:
            assert features is not None
            assert features.shape[1] == len(tokens)
            self.features.append(features)

    def offer(self, anchor: int | None) -> int:
        return self.longest

    def propose(self, anchor: int, length: int, draw: Draw) -> Proposal:
        start = self.length - (self._prompt - 1)  # tokens of the answer that are certain
        right = self._script[self._cycle % len(self._script)]
        self._cycle += 1
        self.proposals.append(length)
        tokens = []
        for offset in range(length):
            index = start + offset
            true = self._answer[index] if index < len(self._answer) else 0
            tokens.append(true if offset < right else (true + 1) % VOCAB)
        return Proposal(mx.array(tokens))

    def meanwhile(self, drafted: Sequence[int]) -> None:
        pass

    def stream(self, taps: Sequence[mx.array]) -> Streamed | None:
        return None

    def report(self) -> Report:
        return Report()

    def trim_to(self, length: int) -> None:
        self.length = length

    def settle(self) -> None:
        pass
