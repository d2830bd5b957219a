from __future__ import annotations

import mlx.core as mx
import mlx_lm
import pytest

from mirror_sd import generate, load, stream_generate
from mirror_sd.api import make_session
from mirror_sd.decoding.sampling import SamplingSettings
from mirror_sd.errors import Notice, PromptError
from tests import tiny


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("pair")
    return tiny.write_target(base / "target"), tiny.write_draft(base / "draft")


@pytest.fixture(scope="module")
def loaded(folders):
    target, draft = folders
    return load(str(target), str(draft))


def both(loaded, prompt, count):
    model, tokenizer = loaded
    ours = list(stream_generate(model, tokenizer, prompt, max_tokens=count))
    theirs = list(mlx_lm.stream_generate(model.target.model, tokenizer, prompt, max_tokens=count))
    return ours, theirs


@pytest.mark.parametrize("prompt", ["Hello, mirror", [3, 1, 4, 1, 5], mx.array([2, 7, 1])])
@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_responses_are_mlx_lms(loaded, prompt, count):
    ours, theirs = both(loaded, prompt, count)
    assert [r.token for r in ours] == [r.token for r in theirs]
    assert "".join(r.text for r in ours) == "".join(r.text for r in theirs)
    assert [r.finish_reason for r in ours] == [r.finish_reason for r in theirs]
    assert [r.generation_tokens for r in ours] == [r.generation_tokens for r in theirs]
    assert ours[-1].prompt_tokens == theirs[-1].prompt_tokens
    for a, b in zip(ours, theirs, strict=True):
        assert mx.abs(a.logprobs - b.logprobs).max().item() < 1e-4


def test_an_end_token_ends_the_answer_and_is_not_text(loaded):
    model, tokenizer = loaded
    prompt = [3, 1, 4, 1, 5]
    free = [r.token for r in stream_generate(model, tokenizer, prompt, max_tokens=30)]
    model.eos_token_ids = frozenset({free[4]})
    tokenizer._eos_token_ids = {free[4]}
    try:
        ours, theirs = both(loaded, prompt, 30)
    finally:
        model.eos_token_ids, tokenizer._eos_token_ids = frozenset({tiny.EOS}), {tiny.EOS}
    assert [r.token for r in ours] == [r.token for r in theirs] == free[: free.index(free[4]) + 1]
    assert ours[-1].finish_reason == theirs[-1].finish_reason == "stop"
    assert "".join(r.text for r in ours) == "".join(r.text for r in theirs)


def test_settings_are_honoured_without_a_session(loaded):
    model, tokenizer = loaded

    def said(**settings):
        stream = stream_generate(model, tokenizer, [3, 1, 4, 1, 5], max_tokens=20, **settings)
        return [r.token for r in stream]

    drawn = said(sampling=SamplingSettings(temperature=1.5, seed=1))
    assert drawn != said()
    assert drawn != said(sampling=SamplingSettings(temperature=1.5, seed=2))
    assert drawn == said(sampling=SamplingSettings(temperature=1.5, seed=1))
    with pytest.raises(PromptError, match="draft_vocab is 0"):
        said(draft_vocab=0)


@pytest.mark.parametrize(
    "settings", [{"exact": True}, {"block_size": 2}, {"sampling": SamplingSettings()}]
)
def test_settings_beside_a_session_are_refused(loaded, settings):
    model, tokenizer = loaded
    stream = stream_generate(model, tokenizer, [3, 1], session=make_session(model), **settings)
    with pytest.raises(PromptError, match="give settings to make_session"):
        next(stream)


def test_responses_say_what_speculation_did(loaded):
    model, tokenizer = loaded
    *_, last = stream_generate(model, tokenizer, "abc", max_tokens=20)
    s = last.statistics
    assert (s.tokens, s.prompt_tokens) == (20, 3)
    assert s.passes + s.accepted == s.tokens
    assert last.acceptance_length == 20 / s.passes
    assert s.draft_seconds > 0
    assert s.seconds >= s.draft_seconds + s.verify_seconds


def test_alternatives_come_with_their_log_probabilities(loaded):
    model, tokenizer = loaded
    for response in stream_generate(model, tokenizer, "abc", max_tokens=9):
        top = response.top_logprobs(3)
        assert top[0][0] == response.token  # greedy: the likeliest one
        assert [p for _, p in top] == sorted((p for _, p in top), reverse=True)
        assert top[1][1] == pytest.approx(response.logprobs[top[1][0]].item())
        assert sum(2.718281828**p for _, p in response.top_logprobs(tiny.VOCAB)) == pytest.approx(1)


def test_generate_returns_the_text(loaded, capsys):
    model, tokenizer = loaded
    text = "".join(r.text for r in stream_generate(model, tokenizer, "abc", max_tokens=9))
    assert generate(model, tokenizer, "abc", max_tokens=9, verbose=True) == text
    assert "acceptance length" in capsys.readouterr().out


def test_a_session_carries_the_conversation(loaded):
    model, tokenizer = loaded
    session = make_session(model)
    first = [r.token for r in stream_generate(model, tokenizer, [1, 2, 3], 8, session=session)]
    whole = [1, 2, 3, *first, 50, 51]
    kept = [r.token for r in stream_generate(model, tokenizer, whole, 8, session=session)]
    assert session.statistics.reused_tokens == 3 + 8 - 1
    assert kept == [r.token for r in stream_generate(model, tokenizer, whole, 8)]


def test_the_answer_ends_where_the_models_context_does(loaded):
    model, tokenizer = loaded
    *_, last = stream_generate(model, tokenizer, [5] * 500, max_tokens=100)
    assert last.generation_tokens == 12
    assert last.finish_reason == "length"


def test_draft_settings_do_not_change_the_tokens(folders):
    target, draft = folders
    answers = []
    for settings in ({}, {"draft_bits": 8}, {"draft_bits": 4}, {"drafting": False}):
        model, tokenizer = load(str(target), str(draft), **settings)
        answers.append([r.token for r in stream_generate(model, tokenizer, "abc", 25)])
    assert all(answer == answers[0] for answer in answers)


def test_a_target_without_a_known_draft_decodes_plainly_and_says_so(folders):
    with pytest.warns(Notice, match="no draft is known for .*: decoding plainly"):
        model, tokenizer = load(str(folders[0]))
    *_, last = stream_generate(model, tokenizer, "abc", max_tokens=5)
    assert last.acceptance_length == 1.0


@pytest.mark.parametrize(
    ("prompt", "settings", "said"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ("abc", {"max_tokens": 0}, "max_tokens is 0"),
        ("abc", {"block_size": 9}, "block size 9 is out of range"),
        ([1] * 600, {}, "600 tokens"),
    ],
)
def test_requests_that_cannot_be_honoured_are_refused(loaded, prompt, settings, said):
    model, tokenizer = loaded
    with pytest.raises(PromptError, match=said):
        list(stream_generate(model, tokenizer, prompt, **settings))


def test_a_setting_that_does_not_exist_is_not_swallowed(loaded):
    model, tokenizer = loaded
    with pytest.raises(TypeError, match="sampler"):
        list(stream_generate(model, tokenizer, "abc", sampler=None))
