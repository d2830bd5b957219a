"""A pair whose draft runs on a device of its own: by the API and on the command line."""

from __future__ import annotations

import platform
import warnings

import pytest
from typer.testing import CliRunner

import mirror_sd
from mirror_sd import load, stream_generate
from mirror_sd.api import make_session
from mirror_sd.bench import timeline, tracefile
from mirror_sd.cli.main import app
from mirror_sd.decoding.branch_policy import SURE
from mirror_sd.decoding.device_drafter import DeviceDrafter
from mirror_sd.decoding.drafter import DFlashDrafter
from mirror_sd.decoding.mirrored import MirroredDrafter
from mirror_sd.devices.device import DeviceError
from mirror_sd.errors import Notice, PairingError, PromptError, UnsupportedError
from mirror_sd.hosting import place
from tests import tiny

pytestmark = pytest.mark.skipif(
    platform.system() == "Darwin", reason="auto is Core ML there; run mirror-sd ane instead"
)


def run(*args: object):
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = tmp_path_factory.mktemp("hosting")
    tiny.write_target(base / "target")
    tiny.write_draft(base / "draft")
    result = run(
        "compile", "-m", base / "target", "--draft", base / "draft", "--out", base / "programs",
        "--context", 512, "--tokens", 3,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return base


def answer(pair, tokenizer, **settings):
    return [r.token for r in stream_generate(pair, tokenizer, "Say it", 24, **settings)]


def test_the_text_is_plain_decodings(base):
    names = str(base / "target"), str(base / "draft")
    placed, tokenizer = load(*names, programs=base / "programs", device="emulator")
    plain, _ = load(names[0], drafting=False)
    wanted = answer(plain, tokenizer)
    assert answer(placed, tokenizer, block_size=4) == wanted
    assert answer(placed, tokenizer) == wanted
    assert answer(placed, tokenizer, block_size=4, mirror=False) == wanted
    assert not placed.draft.placed.failed
    by_mlx, _ = load(*names)
    drafted = [
        list(stream_generate(pair, tokenizer, "Say it", 24, block_size=4))[-1].statistics.passes
        for pair in (placed, by_mlx)
    ]
    assert drafted[0] == pytest.approx(drafted[1], abs=1)


def test_it_is_mirrored_unless_told_otherwise(base):
    names = str(base / "target"), str(base / "draft")
    pair, _ = load(*names, programs=base / "programs", device="emulator")
    assert type(make_session(pair).drafters["dflash"]) is MirroredDrafter
    assert type(make_session(pair, mirror=False).drafters["dflash"]) is DeviceDrafter
    assert type(make_session(load(*names)[0]).drafters["dflash"]) is DFlashDrafter


def test_auto_says_that_it_emulates(base):
    with pytest.warns(Notice, match="no Neural Engine here"):
        load(str(base / "target"), str(base / "draft"), programs=base / "programs")


def test_what_does_not_fit_is_refused(base, tmp_path):
    target, draft = str(base / "target"), str(base / "draft")
    other = tiny.write_draft(tmp_path / "other", seed=9)
    with pytest.raises(PairingError, match="compiled from another draft"):
        load(target, str(other), programs=base / "programs")
    with pytest.raises(PromptError, match="without a draft"):
        load(target, drafting=False, programs=base / "programs")
    with pytest.raises(UnsupportedError, match="on a Mac only"):
        load(target, draft, programs=base / "programs", device="coreml")
    pair, _ = load(target, draft, programs=base / "programs", device="emulator")
    with pytest.raises(PromptError, match="a draft window cannot be set"):
        make_session(pair, draft_window=32)


def test_a_device_that_does_not_load_in_time(base):
    pair, _ = load(str(base / "target"), str(base / "draft"))
    with pytest.raises(DeviceError, match="did not load within"):
        place(pair.draft, base / "programs", mirror_sd.api.DeviceKind.emulator, load_seconds=0.01)


def test_on_the_command_line(base):
    pair = ["-m", base / "target", "--draft", base / "draft"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        placed = run(
            "generate", "Say it", *pair, "-n", 12, "--programs", base / "programs",
            "--device", "emulator", "--compare", "--block-size", 4,
        )  # fmt: skip
    assert placed.exit_code == 0, placed.output
    assert "identical text" in placed.output
    assert "yes" in placed.output


def test_the_draft_in_mlx_in_a_process_of_its_own(base):
    """It needs no programs, and says where it does not pay."""
    pair = ["-m", base / "target", "--draft", base / "draft", "--device", "mlx"]
    placed = run("generate", "Say it", *pair, "-n", 24, "--compare", "--block-size", 4)
    assert placed.exit_code == 0, placed.output
    assert "identical text" in placed.output
    assert "share the CPU" in placed.stderr
    both = run("generate", "Say it", *pair, "--programs", base / "programs")
    assert both.exit_code == 2
    assert "leave one of them out" in both.stderr
    none = run("generate", "Say it", *pair[:2], "--no-draft", "--device", "mlx")
    assert none.exit_code == 2
    assert "--no-draft contradicts" in none.stderr
    with pytest.raises(PromptError, match="programs, which are not given"):
        load(str(base / "target"), str(base / "draft"), device="emulator")


def test_the_timeline_shows_both_devices(base, tmp_path):
    trace = tmp_path / "trace.jsonl"
    pair = ["-m", base / "target", "--draft", base / "draft", "--programs", base / "programs"]
    result = run(
        "generate", "Say it", *pair, "--device", "emulator", "-n", 30, "--block-size", 4,
        "--trace", trace,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = timeline.read(tracefile.read(trace))
    assert found.lanes == ["target", "draft device"]
    works = {bar.what for bar in found.bars if bar.lane == "draft device"}
    assert works == {"block", "branches"}
    assert 0 < found.overlap <= 1
    assert found.launched >= SURE
    shown = run("timeline", trace).stdout
    assert "draft device busy" in shown
    assert f"{found.ready} of {found.launched}" in shown


def test_options_that_contradict_each_other(base):
    lost = run("generate", "Say it", "-m", base / "target", "--device", "emulator")
    assert lost.exit_code == 2
    assert "--device says where to run --programs" in lost.stderr
    both = run(
        "generate", "Say it", "-m", base / "target", "--no-draft", "--programs", base / "programs"
    )
    assert both.exit_code == 2
    assert "--no-draft contradicts" in both.stderr
