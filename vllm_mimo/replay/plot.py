"""Hit rates and recomputed shares as a picture; wants matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_mimo.replay.report import PolicyResult


class PlotError(RuntimeError):
    """No picture can be drawn; the message says why and what to do."""


def check_plot(path: Path) -> None:
    """Raise PlotError before a long replay where the picture could not be written after it."""
    try:
        import matplotlib
    except ImportError as error:
        raise PlotError("--plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib.backend_bases import FigureCanvasBase

    endings = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in endings:
        raise PlotError(f"--plot {path}: its ending must be one of {', '.join(sorted(endings))}")
    if not path.parent.is_dir():
        raise PlotError(f"--plot {path}: there is no folder {path.parent}")


def write_plot(results: Sequence[PolicyResult], path: Path, title: str) -> None:
    """Bars of prompt tokens reused and computed, one group for each budget."""
    check_plot(path)
    from matplotlib import pyplot

    budgets = list(dict.fromkeys(result.budget_bytes for result in results))
    policies = list(dict.fromkeys(result.policy for result in results))
    figure, axes = pyplot.subplots(figsize=(2 + 1.1 * len(results), 4), layout="constrained")
    width = 0.8 / len(policies)
    for index, policy in enumerate(policies):
        shares = {r.budget_bytes: 1 - r.recomputed_fraction for r in results if r.policy == policy}
        places = [i + width * (index - (len(policies) - 1) / 2) for i in range(len(budgets))]
        heights = [100 * shares[budget] for budget in budgets]
        bars = axes.bar(places, heights, 0.92 * width, label=policy)
        axes.bar_label(bars, fmt="%.1f", fontsize=8)
    axes.set_xticks(range(len(budgets)), [f"{budget / 1e9:g} GB" for budget in budgets])
    axes.set_xlabel("KV cache of one rank")
    axes.set_ylabel("prompt tokens not computed again, %")
    axes.set_ylim(0, 100)
    axes.set_title(title)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
