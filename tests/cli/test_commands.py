"""What a user sees: answers on stdout, everything else on stderr, one line per error."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mirror_sd.cli.main import app
from mirror_sd.models import cachedir
from tests import tiny


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    base = tmp_path_factory.mktemp("cli")
    target = tiny.write_target(base / "target")
    return ["-m", str(target), "--draft", str(tiny.write_draft(base / "draft"))]


def run(*arguments: str, stdin: str | None = None):
    return CliRunner().invoke(app, list(arguments), input=stdin, env={"COLUMNS": "200"})


def test_generate_prints_the_answer_alone_on_stdout(pair):
    plain = run("generate", "hello", *pair, "-n", "20", "--no-draft", "--dtype", "stored")
    assert plain.exit_code == 2  # --no-draft and --draft contradict each other
    drafted = run("generate", "hello", *pair, "-n", "20", "--compare")
    assert drafted.exit_code == 0, drafted.stderr
    plain = run("generate", "hello", *pair[:2], "-n", "20", "--no-draft")
    assert drafted.stdout == plain.stdout
    assert "acceptance length" in drafted.stderr
    assert "identical text" in drafted.stderr
    assert " yes " in drafted.stderr


def test_the_table_tells_what_was_asked_for(pair):
    shown = run("generate", "hello", *pair, "-n", "12", "--compare").stderr
    for row in (
        "tokens",
        "acceptance length",
        "target passes",
        "draft time",
        "verify time",
        "tok/s",
    ):
        assert row in shown


def test_a_prompt_can_come_from_stdin(pair):
    piped = run("generate", "-", *pair, "-n", "8", stdin="hello")
    assert piped.stdout == run("generate", "hello", *pair, "-n", "8").stdout


def test_raw_and_system_change_the_prompt(pair):
    answers = {
        run("generate", "hello", *pair, "-n", "12", *more).stdout
        for more in ([], ["--raw"], ["--system", "Be brief."])
    }
    assert len(answers) == 3


def test_accepted_tokens_can_be_coloured(monkeypatch, capsys):
    from types import SimpleNamespace

    from mirror_sd.cli import view

    monkeypatch.setattr(view, "out", view.Console(force_terminal=True, color_system="standard"))
    with view.Answer(show_accepted=True) as shown:
        for text, from_draft in (("own", False), ("drafted", True), ("\nnext", False)):
            shown.add(
                SimpleNamespace(
                    text=text,
                    from_draft=from_draft,
                    generation_tokens=1,
                    generation_tps=1.0,
                    acceptance_length=1.0,
                )
            )
    assert "own\x1b[32mdrafted\x1b[0m\n" in capsys.readouterr().out


def test_chat_keeps_its_caches_from_turn_to_turn(pair):
    talk = run("chat", *pair, "-n", "10", stdin="hello\nand then?\n/reset\nhello\n/quit\n")
    assert talk.exit_code == 0, talk.stderr
    turns = [line for line in talk.stderr.splitlines() if "reused" in line]
    reused = [int(line.split("(")[1].split()[0]) for line in turns]
    assert reused[0] == 0
    assert reused[1] >= len("uhelloeb")  # the whole first prompt: three special tokens and 5 bytes
    answers = talk.stdout.split("> ")
    assert answers[1] == answers[4]  # after /reset, the same question gets the same answer


def test_chat_ends_at_the_end_of_input(pair):
    assert run("chat", *pair, "-n", "3", stdin="hello\n").exit_code == 0


def test_ctrl_c_stops_the_answer_not_the_program(pair, monkeypatch):
    from mirror_sd.cli import view

    real, calls = view.Answer.add, []

    def add(self, response):
        calls.append(response)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(self, response)

    monkeypatch.setattr(view.Answer, "add", add)
    talk = run("chat", *pair, "-n", "10", stdin="hello\nand then?\n")
    assert talk.exit_code == 0
    assert "stopped" in talk.stderr
    assert len([line for line in talk.stderr.splitlines() if "reused" in line]) == 2
    assert len(calls) == 3 + 10


def test_models_lists_every_pair():
    from mirror_sd.models import registry

    shown = run("models").stdout
    assert "demo" in shown
    for row in registry.ROWS:
        assert row.draft in shown


def test_doctor_tells_versions_device_and_blas():
    shown = run("doctor").stdout
    for word in ("mlx-lm", "device", "BLAS", "free memory", "cache directory"):
        assert word in shown


def test_version():
    assert run("--version").stdout.startswith("mirror-sd 0.")


def damaged(tmp_path, kind):
    """A target folder that is broken in one way."""
    folder = tiny.write_target(tmp_path / kind)
    weights = folder / "model.safetensors"
    match kind:
        case "weights cut short":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "weights garbage":
            weights.write_bytes(b"\x00" * 5000)
        case "config cut short":
            text = (folder / "config.json").read_text()
            (folder / "config.json").write_text(text[: len(text) // 2])
        case "config without values":
            (folder / "config.json").write_text('{"model_type": "llama"}')
        case "unknown model type":
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "model_type": "nonesuch"}))
        case "no weights":
            weights.unlink()
        case "no tokenizer":
            for file in folder.glob("tokenizer*"):
                file.unlink()
    return str(folder)


def error_line(result) -> str:
    """The one line of a proper error."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = [x for x in result.stderr.splitlines() if x.strip() and not x.startswith("note:")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("weights cut short", "model.safetensors is damaged"),
        ("weights garbage", "no safetensors header"),
        ("config cut short", "config.json is damaged"),
        ("config without values", "cannot load the target"),
        ("unknown model type", "nonesuch not supported"),
        ("no weights", "has no model*.safetensors file"),
        ("no tokenizer", "cannot load the target"),
    ],
)
def test_a_damaged_target_is_one_clear_line(tmp_path, kind, said):
    assert said in error_line(run("generate", "hi", "-m", damaged(tmp_path, kind), "--no-draft"))


def test_a_number_format_that_mlx_cannot_compute_is_one_clear_line(pair, monkeypatch):
    from mirror_sd.models import loading

    def failing(*_):
        raise RuntimeError("[GatherMM::eval] Currently only supports float32.")

    monkeypatch.setattr(loading, "TargetModel", failing)
    assert "try --dtype float32" in error_line(run("generate", "hi", *pair))


def test_a_damaged_draft_is_one_clear_line(tmp_path, pair):
    folder = tiny.write_draft(tmp_path / "draft")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    assert "fetch the draft again" in error_line(
        run("generate", "hi", *pair[:2], "--draft", str(folder))
    )


def test_draft_weights_that_do_not_match_the_config_are_one_clear_line(tmp_path, pair):
    folder = tiny.write_draft(tmp_path / "draft")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
    line = error_line(run("generate", "hi", *pair[:2], "--draft", str(folder)))
    assert "do not match its config" in line


def test_a_draft_for_another_target_is_one_clear_line(pair):
    line = error_line(run("generate", "hi", *pair[:2], "--draft", "demo"))
    assert "hidden size 576 against 64" in line


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_one_clear_line(pair, prompt):
    assert "the prompt is empty" in error_line(run("generate", prompt, *pair))


def test_a_prompt_that_is_too_long_is_one_clear_line(pair):
    line = error_line(run("generate", "x" * 600, *pair))
    assert "allows 512" in line


def test_a_missing_model_is_one_clear_line():
    assert "no target at nonesuch" in error_line(run("generate", "hi", "-m", "nonesuch"))
    assert "no target at ./a/b" in error_line(run("generate", "hi", "-m", "./a/b"))


def test_an_unknown_repository_while_offline_is_one_clear_line(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    line = error_line(run("generate", "hi", "-m", "nobody/nothing", "--no-draft"))
    assert "the Hugging Face hub cannot be reached" in line


def test_no_disk_space_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv(cachedir.ENV, str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1_000_000}))
    assert "no disk space in the cache directory" in error_line(run("generate", "hi"))


def test_a_block_size_out_of_range_is_one_clear_line(pair):
    line = error_line(run("generate", "hi", *pair, "--block-size", "40"))
    assert "block size 40 is out of range: this draft takes 1 to 6" in line


def test_contradicting_options_are_one_clear_line(pair):
    assert "contradicts" in error_line(run("generate", "hi", *pair, "--no-draft"))
    line = error_line(run("generate", "hi", *pair, "--raw", "--system", "x"))
    assert "chat template" in line


def test_sampling_settings_reach_the_decoder(pair):
    greedy = run("generate", "hello", *pair, "-n", "20").stdout
    drawn = [
        run("generate", "hello", *pair, "-n", "20", "-t", "1.0", "--seed", seed).stdout
        for seed in ("1", "1", "2")
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert greedy not in drawn
    biased = run("generate", "hello", *pair, "-n", "20", "--logit-bias", "70=100").stdout
    assert len(set(biased.strip())) == 1
    stopped = run("generate", "hello", *pair, "-n", "20", "--stop", greedy[3:5]).stdout
    assert stopped.strip() == greedy[:3].strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "3"], "do nothing at temperature 0"),
        (["--top-p", "0.9"], "do nothing at temperature 0"),
        (["--logit-bias", "x=1"], "give ID=VALUE"),
        (["--logit-bias", "999=1"], "token id 999"),
        (["--compare", "-t", "1"], "--compare compares greedy decoding"),
        (["--exact", "-t", "1"], "with a temperature use a seed"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
    ],
)
def test_sampling_settings_that_cannot_be_honoured_are_one_clear_line(pair, arguments, said):
    assert said in error_line(run("generate", "hi", *pair, *arguments))
