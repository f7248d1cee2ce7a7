"""Concurrent requests by context length in both planners, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_mimo.planner.inputs import PlanError, format_tokens


def draw(
    points: Sequence[tuple[int, int, int | None, int | None]],
    max_num_seqs: int,
    title: str,
    path: Path,
) -> None:
    """Draw `comparison.curve`'s points, and the scheduler's limit, into `path`.

    Raises PlanError without matplotlib, or where the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PlanError("--plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(8, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lengths = [point[0] for point in points]
    axes.plot(lengths, [point[1] for point in points], label="two pools", color="#d95f02", lw=2.2)
    for index, name, style in ((2, "settled", "-"), (3, "reserved", "--")):
        if points[0][index] is not None:
            counts = [point[index] for point in points]
            axes.plot(lengths, counts, style, label=f"vLLM, {name}", color="#1b6ca8")
    axes.axhline(max_num_seqs, color="gray", ls=":", label=f"max_num_seqs {max_num_seqs:,}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [2**power for power in range(10, 21, 2) if 2**power <= lengths[-1]]
    axes.set_xticks(ticks, [format_tokens(tick) for tick in ticks])
    axes.set_xlabel("context of every request, tokens")
    axes.set_ylabel("concurrent requests per attention replica")
    axes.set_title(title, fontsize=10)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise PlanError(f"--plot '{path}' cannot be written: {error}") from None
