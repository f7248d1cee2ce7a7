"""`vllm-mimo plan` from its arguments to its output."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import CONFIGS
from vllm_mimo.cli.main import main
from vllm_mimo.planner.gpus import GPUS, find_gpu
from vllm_mimo.planner.inputs import (
    PlanError,
    format_tokens,
    parse_bytes,
    parse_mix,
    parse_tokens,
)

BASE = ["plan", "--model", "XiaomiMiMo/MiMo-V2.5", "--gpu", "H200", "--count", "8"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*BASE, *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a refusal prints."""
    assert main([*arguments, "--no-vllm"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def paths(value: Any, prefix: str = "") -> set[str]:
    """Every key of nested objects, list items without their number."""
    if isinstance(value, dict):
        return {p for key, inner in value.items() for p in paths(inner, f"{prefix}.{key}")}
    if isinstance(value, list):
        return {p for inner in value for p in paths(inner, f"{prefix}[]")} or {prefix}
    return {prefix}


def test_the_report_has_every_section(capsys: pytest.CaptureFixture[str]):
    report = run(capsys)
    for line in (
        "73,081 tensors, 315.0 GB",
        "1 instance of TP 8, EP 8, PP 1",
        "  routed experts         302.87  37.86",
        "blocks of 368,640 bytes",
        "blocks of 1,597,440 bytes",
        "+15.4% on SWA bytes",
        "SWA alone, same window and tokens in flight: 0.867",
        "2 ranks keep the same full KV",
        "--max-cudagraph-capture-size",
    ):
        assert line in report
    assert max(map(len, report.splitlines())) < 240


def test_json_is_one_object_with_the_reports_numbers(capsys: pytest.CaptureFixture[str]):
    plan = json.loads(run(capsys, "--json", "--context-mix", "4k:0.5,32k:0.3,128k:0.2"))
    assert plan["schema"] == 1
    assert plan["model"]["tensors"] == 73_081
    stage = plan["memory"]["stages"][0]
    others = sum(item["size"] for item in plan["memory"]["others"])
    assert stage["kv_bytes"] == plan["gpu"]["usable"] - stage["weights_bytes"] - others
    assert [row["label"] for row in plan["requests"]] == [
        *("0-64K", "64K-256K", "256K-1M"),
        *("4K", "32K", "128K", "mix"),
    ]
    assert plan["vllm"]["available"] is True
    assert plan["requests"][0]["vllm"]["settled"]["concurrent"] > 0
    assert paths(plan) == set((Path(__file__).parent / "schema_1.txt").read_text().split("\n")) - {
        ""
    }


def test_without_vllm_its_column_is_unavailable(capsys: pytest.CaptureFixture[str]):
    plan = json.loads(run(capsys, "--json", "--no-vllm"))
    assert plan["vllm"] == {"available": False, "reason": "left out by --no-vllm"}
    assert plan["ratio"] is None
    assert all(row["vllm"] is None for row in plan["requests"])
    report = run(capsys, "--no-vllm")
    assert "vLLM's own planning is unavailable: left out by --no-vllm" in report
    assert "n/a" in report


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--gpu", "H200", "--count", "0"], "--count must be 1 or more, got 0"),
        (["--gpu", "H201"], "choose one of A100, H100, H20, H20-141GB, H200, B200"),
        ([], "give --gpu"),
        (["--gpu-memory", "141XB"], "'141XB' is not a size"),
        (["--gpu", "H200", "--tp", "3"], "does not divide the 64 query and 4 KV heads"),
        (["--gpu", "H200", "--tp", "8", "--pp", "2"], "needs 16 GPUs, --count is 8"),
        (["--gpu", "H200", "--count", "24", "--tp", "8", "--ep", "24"], "divide the 256 routed"),
        (["--gpu", "H200", "--tp", "8", "--ep", "4"], "not a multiple of --tp 8"),
        (["--gpu", "H200", "--ep", "16", "--tp", "8"], "--ep 16 times --pp 1 needs 16 GPUs"),
        (["--gpu", "H200", "--count", "32", "--tp", "32", "--ep", "1"], "within their FP8 blocks"),
        (["--gpu", "H200", "--count", "1"], "nothing is left for KV: 313."),
        (["--gpu", "H200", "--kv-bytes", "1GB"], "needs 16,385 and 260"),
        (["--gpu", "H200", "--kv-bytes", "0"], "'0' is not above 0"),
        (["--gpu", "H200", "--context-mix", "4k:0.5"], "add up to 0.5"),
        (["--gpu", "H200", "--context-mix", "4k"], "'4k' is not LENGTH:SHARE"),
        (["--gpu", "H200", "--context-mix", "2m:1"], "has 2,097,152 tokens"),
        (["--gpu", "H200", "--max-model-len", "2m"], "exceeds the model's 1,048,576"),
        (["--gpu", "H200", "--max-num-seqs", "0"], "--max-num-seqs must be 1 or more"),
        (["--gpu", "H200", "--mtp", "4"], "--mtp must be 0 to 3, got 4"),
        (["--gpu", "H200", "--kv-dtype", "int8"], "choose one of bf16, fp8"),
        (["--gpu", "H200", "--gpu-memory-utilization", "nan"], "above 0 and up to 1, got nan"),
        (["--gpu", "H200", "--swa-pool-fraction", "1.5"], "between 0 and 1, got 1.5"),
        (["--gpu", "H200", "--plot", "missing/plan.png"], "cannot be written"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert message in refused(capsys, "plan", "--model", "MiMo-V2.5", *arguments)


def test_unknown_models_list_the_bundled_ones(capsys: pytest.CaptureFixture[str]):
    line = refused(capsys, "plan", "--model", "MiMo-V9", "--gpu", "H200")
    for name in ("MiMo-V2-Flash", "MiMo-V2.5", "MiMo-V2.5-Pro"):
        assert f"XiaomiMiMo/{name}" in line


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ("{}", "'num_hidden_layers' is missing"),
        ('{"quantization_config": {"quant_method": "awq"}}', "only bf16 and block-FP8"),
    ],
)
def test_broken_configs(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "config.json").write_text(text)
    assert message in refused(capsys, "plan", "--model", str(tmp_path), "--gpu", "H200")


def test_a_folder_plans_as_the_bundled_config_of_the_same_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.copy(CONFIGS / "MiMo-V2.5.json", tmp_path / "config.json")
    plans = []
    for model in ("mimo-v2.5", str(tmp_path), str(tmp_path / "config.json")):
        assert main(["plan", "--model", model, "--gpu", "h200", "--no-vllm", "--json"]) == 0
        plans.append(json.loads(capsys.readouterr().out))
        plans[-1]["model"].pop("name")
    assert plans[0] == plans[1] == plans[2]


def test_kv_bytes_and_fraction_are_taken_as_given(capsys: pytest.CaptureFixture[str]):
    arguments = ("--kv-bytes", "20GB", "--swa-pool-fraction", "0.1", "--no-vllm", "--json")
    plan = json.loads(run(capsys, *arguments))
    assert plan["memory"]["stages"][0]["kv_bytes"] == 20 * 10**9
    assert plan["pools"]["window_fraction"] == pytest.approx(0.1, abs=0.001)


def test_a_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run(capsys, "--no-vllm", "--plot", str(tmp_path / "plan.png"))
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_picture_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = refused(capsys, *BASE, "--plot", str(tmp_path / "plan.png"))
    assert "pip install matplotlib" in line


def test_gpus_and_sizes():
    assert {name: gpu.memory // 10**9 for name, gpu in GPUS.items()} == {
        "A100": 80,
        "H100": 80,
        "H20": 96,
        "H20-141GB": 141,
        "H200": 141,
        "B200": 180,
    }
    assert find_gpu("b200", 10**9).graph_ceiling == 1024
    assert find_gpu(None, 10**9).memory == 10**9
    assert parse_bytes("80GiB") == 80 * 2**30
    assert (parse_tokens("1.5k"), parse_tokens("1m")) == (1536, 2**20)
    assert [format_tokens(n) for n in (1000, 2048, 2**20)] == ["1,000", "2K", "1M"]
    assert [part.tokens for part in parse_mix("4k:0.5,32k:0.5")] == [4096, 32_768]
    for bad in ("k", "-1", "1" * 40, "0"):
        with pytest.raises(PlanError):
            parse_tokens(bad)
