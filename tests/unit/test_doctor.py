"""The doctor: each finding on made-up machines, and the command on this one."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version

from vllm_mimo import compat
from vllm_mimo.cli import doctor as command
from vllm_mimo.cli.main import COMMANDS, build_parser, main
from vllm_mimo.config import ENV_VAR
from vllm_mimo.doctor import Finding, Report, Status
from vllm_mimo.doctor.gpu import gpu_findings
from vllm_mimo.doctor.machine import machine_findings, numa_nodes
from vllm_mimo.doctor.plugin import plugin_findings
from vllm_mimo.doctor.software import software_findings

TWO_NODES = {"0": "0-27,56-83", "1": "28-55,84-111"}


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def make_machine(root: Path, flags: str, nodes: dict[str, str], balancing: str) -> dict[str, Path]:
    proc, sys_ = root / "proc", root / "sys"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    (proc / "meminfo").write_text("MemTotal:  67108864 kB\nMemAvailable:  16777216 kB\n")
    (proc / "sys/kernel/numa_balancing").write_text(f"{balancing}\n")
    for number, cpus in nodes.items():
        folder = sys_ / "devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return {"proc": proc, "sys": sys_}


def test_a_server_with_two_nodes_and_balancing(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "avx2 avx512f avx512_bf16 amx_tile", TWO_NODES, "1")
    found = by_name(machine_findings({}, **machine))
    assert found["NUMA nodes"].value == TWO_NODES
    balancing = found["numa_balancing"]
    assert balancing.status is Status.WARN
    assert "kernel.numa_balancing=0" in balancing.advice
    assert "2607.13095" in balancing.advice
    binding = found["VLLM_CPU_OMP_THREADS_BIND"]
    assert 'VLLM_CPU_OMP_THREADS_BIND="0-27,56-83|28-55,84-111"' in binding.advice
    assert "--tensor-parallel-size 2" in binding.advice
    assert found["instruction sets"].status is Status.OK
    assert found["memory"].value == {"total_gib": 64.0, "available_gib": 16.0}


def test_a_tuned_server_needs_no_advice(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "avx2 avx512f amx_tile", TWO_NODES, "0")
    environ = {"VLLM_CPU_OMP_THREADS_BIND": "0-27|28-55", "VLLM_CPU_KVCACHE_SPACE": "8"}
    findings = machine_findings(environ, **machine)
    assert {finding.status for finding in findings} == {Status.OK}
    assert not any(finding.advice for finding in findings)


def test_balancing_with_one_node_is_a_remark(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, "avx2", {"0": "0-1"}, "1")
    assert by_name(machine_findings({}, **machine))["numa_balancing"].status is Status.INFO


def test_nodes_are_in_the_order_of_numbers_and_have_cpus(tmp_path: Path) -> None:
    nodes = {"10": "40-43", "2": "8-11", "0": "0-3", "11": ""}
    assert list(numa_nodes(make_machine(tmp_path, "", nodes, "0")["sys"])) == ["0", "2", "10"]


@pytest.mark.parametrize(
    ("flags", "status", "word"),
    [("sse4_2", "warn", "AVX2"), ("avx2", "info", "AVX-512"), ("avx2 avx512f", "info", "AMX")],
)
def test_what_a_cpu_lacks_is_said(tmp_path: Path, flags: str, status: str, word: str) -> None:
    machine = make_machine(tmp_path, flags, {"0": "0"}, "0")
    found = by_name(machine_findings({}, **machine))["instruction sets"]
    assert (found.status, word in found.advice) == (status, True)


@pytest.mark.parametrize(("space", "word"), [("17", "more than"), ("4.5", "whole number")])
def test_a_kv_cache_space_that_fails_is_said(tmp_path: Path, space: str, word: str) -> None:
    machine = make_machine(tmp_path, "avx2", {"0": "0"}, "0")
    found = by_name(machine_findings({"VLLM_CPU_KVCACHE_SPACE": space}, **machine))
    assert found["VLLM_CPU_KVCACHE_SPACE"].status is Status.WARN
    assert word in found["VLLM_CPU_KVCACHE_SPACE"].advice


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    found = by_name(machine_findings({}, proc=tmp_path, sys=tmp_path))
    assert found["NUMA nodes"].value is None
    assert found["memory"].value == {"total_gib": None, "available_gib": None}


@pytest.mark.parametrize(
    ("value", "status"),
    [(None, "ok"), ("mimo", "ok"), ("a,mimo", "ok"), ("a", "missing"), ("", "missing")],
)
def test_vllm_plugins_may_keep_the_plugin_out(value: str | None, status: str) -> None:
    environ = {} if value is None else {"VLLM_PLUGINS": value}
    assert by_name(plugin_findings(None, environ))["VLLM_PLUGINS"].status == status


def test_the_config_in_force_with_its_sources() -> None:
    environ = {ENV_VAR: '{"fp8_on_cpu": "native", "enabled": false}'}
    found = by_name(plugin_findings({"mimo": {"enabled": True}}, environ))["config"]
    assert found.status is Status.OK
    assert found.value["enabled"] == {"value": True, "source": "--additional-config mimo"}
    assert found.value["fp8_on_cpu"] == {"value": "native", "source": ENV_VAR}
    assert found.value["api_defaults"] == {"value": True, "source": "default"}


def test_a_plugin_that_is_switched_off_or_misconfigured_is_said() -> None:
    off = by_name(plugin_findings(None, {ENV_VAR: '{"enabled": false}'}))["config"]
    assert off.status is Status.WARN
    assert ENV_VAR in off.advice
    bad = by_name(plugin_findings(None, {ENV_VAR: '{"enbled": false}'}))["config"]
    assert bad.status is Status.MISSING
    assert "did you mean 'enabled'" in bad.advice


def test_an_entry_point_that_is_absent_or_does_not_load(monkeypatch) -> None:
    broken = importlib.metadata.EntryPoint("mimo", "vllm_mimo_absent:register", "g")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [broken])
    found = by_name(plugin_findings(None, {}))["entry point"]
    assert found.status is Status.MISSING
    assert "ModuleNotFoundError" in found.advice
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    found = by_name(plugin_findings(None, {}))["entry point"]
    assert found.status is Status.MISSING
    assert "make setup" in found.advice


def test_software_without_a_usable_vllm(monkeypatch) -> None:
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.31.0")
    found = by_name(software_findings())
    assert found["vllm"].status is Status.MISSING
    assert "vLLM 0.31.0 was found" in found["vllm"].advice
    assert "contract" not in found  # a release we do not know is not worth checking

    def absent() -> str:
        raise compat.UnsupportedVllmError("vLLM is not installed")

    monkeypatch.setattr(compat, "vllm_version", absent)
    assert by_name(software_findings())["vllm"].value is None


def missing_distribution(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_software_with_a_vllm_that_fits_badly(monkeypatch) -> None:
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.33.0")
    monkeypatch.setattr(compat, "installed_distributions", lambda: {"vllm-cpu": "0.33.0"})
    monkeypatch.setattr("vllm_mimo.doctor.software.check_installed", lambda: ["X is gone"])
    no_device = SimpleNamespace(current_platform=SimpleNamespace(device_type=""))
    monkeypatch.setitem(sys.modules, "vllm.platforms", no_device)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__path__=[]))
    monkeypatch.setattr(importlib.metadata, "version", missing_distribution)
    found = by_name(software_findings())
    assert found["torch"].status is Status.MISSING
    assert found["vllm serve"].status is Status.WARN
    assert found["platform"].status is Status.MISSING
    assert found["contract"].status is Status.MISSING
    assert found["contract"].value == ["X is gone"]

    monkeypatch.setitem(sys.modules, "vllm.platforms", None)  # what makes importing it fail
    platform = by_name(software_findings())["platform"]
    assert platform.status is Status.MISSING
    assert "vllm.platforms" in platform.advice


def make_program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_gpus_and_compiler(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = by_name(gpu_findings())
    assert found["NVIDIA GPUs"].value == "nvidia-smi is not installed"
    assert found["nvcc"].value is None

    make_program(tmp_path, "nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 580.1'")
    make_program(tmp_path, "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    found = by_name(gpu_findings())
    assert found["NVIDIA GPUs"].value == ["NVIDIA H200, 143771 MiB, 580.1"]
    assert found["nvcc"].value == "13.0"

    make_program(tmp_path, "nvidia-smi", "exit 9")  # a driver that does not answer
    found = by_name(gpu_findings())
    assert found["NVIDIA GPUs"].value == "nvidia-smi reports none"


def test_only_what_is_missing_makes_a_machine_unfit(monkeypatch, capsys) -> None:
    lines = [Finding("machine", name, Status(name), name) for name in ("ok", "info", "warn")]
    fit = Report(tuple(lines))
    unfit = Report((*lines, Finding("software", "vllm", Status.MISSING, None, "Install it.")))
    assert (fit.runnable, unfit.runnable) == (True, False)
    for report, code in ((fit, 0), (unfit, 1)):
        monkeypatch.setattr(command, "examine", lambda *_, report=report: report)
        assert main(["doctor"]) == code
        assert capsys.readouterr().out == command.format_report(report) + "\n"
        assert main(["doctor", "--json"]) == code
        assert json.loads(capsys.readouterr().out) == report.as_dict()


def test_the_report_for_a_person() -> None:
    long = "word " * 40
    report = Report(
        (
            Finding("software", "vllm", Status.OK, {"version": "1", "distribution": "d"}),
            Finding("software", "contract", Status.MISSING, ["a" * 40, "b" * 40], long),
            Finding("plugin", "config", Status.OK, {"k": {"value": True, "source": "default"}}),
            Finding("plugin", "x", Status.WARN, None),
        )
    )
    lines = command.format_report(report).splitlines()
    assert lines[:4] == [
        "software",
        "  ok       vllm      version: 1",
        "                     distribution: d",
        f"  MISSING  contract  {'a' * 40}",
    ]
    assert "  ok       config    k: True (default)" in lines
    assert "  warn     x         -" in lines
    assert lines[-1] == "missing: contract"
    assert max(map(len, lines)) <= command.LINE_LENGTH
    assert sum(line.count("word") for line in lines) == 40


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_bad_additional_config_is_a_usage_error(text: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--additional-config", text])
    assert caught.value.code == 2
    assert "--additional-config" in capsys.readouterr().err


def test_help_lists_every_subcommand(capsys) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--help"])
    listed = capsys.readouterr().out
    assert all(name in listed for name in COMMANDS)


def test_this_machine_is_ready_and_says_so_in_json() -> None:
    script = Path(sys.executable).parent / "vllm-mimo"
    assert script.exists(), "vllm-mimo is not installed: run make setup"
    extra = '--additional-config={"mimo": {"fp8_on_cpu": "native"}}'
    result = subprocess.run([script, "doctor", "--json", extra], capture_output=True, text=True)
    report = json.loads(result.stdout)
    assert report["missing"] == []
    assert report["runnable"] is True
    assert result.returncode == 0
    found = {finding["name"]: finding for finding in report["findings"]}
    version = Version(found["vllm"]["value"]["version"])
    assert version.public == Version(importlib.metadata.version("vllm-cpu")).public
    assert compat.is_supported(str(version))
    assert found["platform"]["value"] == "cpu"
    assert found["entry point"]["value"] == "vllm_mimo.plugin:register"
    assert found["cores"]["value"] == len(os.sched_getaffinity(0))
    assert found["contract"]["status"] == "ok"
    assert found["config"]["value"]["fp8_on_cpu"]["value"] == "native"
    assert {"software", "plugin", "machine", "gpu"} == {f["section"] for f in report["findings"]}


def test_an_unfit_machine_exits_with_1(monkeypatch, capsys) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    monkeypatch.setenv(ENV_VAR, "{}}")
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "missing: VLLM_PLUGINS, config"
    words = " ".join(output.split())
    assert "unset VLLM_PLUGINS, or add mimo to it" in words
    assert "VLLM_MIMO_CONFIG: not valid JSON" in words
