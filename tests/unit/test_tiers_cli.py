"""The table that `vllm-mimo tiers` prints."""

from __future__ import annotations

import pytest

from vllm_mimo.cli import main
from vllm_mimo.cli.tiers import NOTES, ROWS, table
from vllm_mimo.metrics.names import FIGURES


def test_all_figures_of_the_table_exist() -> None:
    used = {name for _, name in NOTES}
    for _, *columns in ROWS:
        for column in columns:
            used.update([column] if isinstance(column, str) else column or ())
    assert used <= set(FIGURES)


def test_rates_come_from_two_moments() -> None:
    before = {"vllm_mimo:host_loaded_full_bytes_total": 1e9}
    values = {
        "vllm_mimo:host_loaded_full_bytes_total": 1.5e9,
        "vllm_mimo:host_loaded_swa_bytes_total": 1e8,
        "vllm_mimo:host_full_usage": 0.25,
        "vllm_mimo:host_hit_tokens_total": 12_345.0,
        "vllm_mimo:tier_load_seconds_total": 2.0,
    }
    text = table(values, before, 2.0)
    host = next(line for line in text.splitlines() if line.startswith("host"))
    assert host.split()[1:4] == ["25.0", "%", "-"]
    assert "12,345" in host and "1.600 GB (300.0 MB/s)" in host
    assert "loads took 2.000 s; steps waited for 0.000 s" in text
    assert "MB/s" not in table(values, {}, 2.0)


def test_a_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["tiers", "--once", "--url", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err
