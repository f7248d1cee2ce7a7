"""The advice of a plan in sentences with the numbers that they rest on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def advice_lines(plan: dict[str, Any]) -> Iterator[str]:
    """The section on parallelism, split and CUDA graphs."""
    yield "Advice"
    yield from _parallelism(plan)
    yield from _split(plan)
    yield from _graphs(plan)


def _parallelism(plan: dict[str, Any]) -> Iterator[str]:
    advice, place = plan["advice"], plan["placement"]
    base, *others = advice["alternatives"]
    yield f"  Parallelism: requests of the mix on all {place['count']} GPUs (memory alone)"
    for other in (base, *others):
        yield f"    TP {other['tp']}, EP {other['ep']:<3} " + _numbers(other, base)
    heads = plan["model"]["full_kv_heads"]
    if place["tp"] > heads:
        yield (
            f"    TP {place['tp']} has more ranks than full attention has KV heads ({heads}): "
            f"{place['tp'] // heads} ranks keep the same full KV."
        )
    yield "    " + _expert_verdict(advice, place["ep"], plan["serving"]["max_num_seqs"])


def _expert_verdict(advice: dict[str, Any], ep: int, max_num_seqs: int) -> str:
    whole, half = advice["best_whole_ep"], advice["best_half_ep"]
    if advice["half_ep_is_enough"] is None:
        return f"EP {ep} cannot be halved here."
    if half is None:
        return f"Keep EP {ep}: half of it does not fit."
    reached = f"EP {half['ep']} runs {half['concurrent']:,} at its best (TP {half['tp']})"
    if whole is not None:
        reached += f", EP {ep} {whole['concurrent']:,} (TP {whole['tp']})"
    if advice["half_ep_is_enough"]:
        return (
            f"{reached}: enough KV is left (90 % of the requests, or max_num_seqs {max_num_seqs:,} "
            f"per replica). Prefer EP {half['ep']}: experts then exchange tokens "
            f"among {half['ep']} GPUs instead of {ep} (after arXiv 2607.13095, section 5.1)."
        )
    return (
        f"{reached}. Keep EP {ep}: with half of it the experts' bytes on a GPU double, and fewer "
        "than 90 % of the requests fit."
    )


def _numbers(other: dict[str, Any], base: dict[str, Any]) -> str:
    if other["error"] is not None:
        return f"does not fit: {other['error'].split(';')[0]}"
    kept = ""
    if other is not base and base["concurrent"]:
        kept = f" ({other['concurrent'] / base['concurrent']:.0%})"
    return (
        f"weights {other['weights'] / 1e9:6.1f} GB, KV {other['kv'] / 1e9:6.1f} GB per GPU; a "
        f"request takes {other['request_bytes'] / 1e9:.3f} GB per rank, "
        f"{other['window_share']:.1%} of it SWA: {other['concurrent']:,} requests{kept}"
    )


def _split(plan: dict[str, Any]) -> Iterator[str]:
    split, fraction = plan["advice"]["split"], plan["pools"]["window_fraction"]
    other = (
        f"swa_pool_fraction {split['balanced_fraction']:.3f} would run "
        f"{split['balanced_concurrent']:,} per replica"
    )
    if split["binding"] == "SWA":
        yield (
            f"  Split: the SWA pool ({fraction:.1%}) is full first, at {split['concurrent']:,} "
            f"requests of the mix; {other}."
        )
    else:
        yield (
            f"  Split: the full pool is full first, at {split['concurrent']:,} requests of the "
            f"mix; the SWA pool ({fraction:.1%}) then has room for {split['spare_tails']:,} tails "
            f"of other sessions. {other} and keep no tails."
        )


def _graphs(plan: dict[str, Any]) -> Iterator[str]:
    graphs = plan["advice"]["cuda_graphs"]
    yield (
        f"  CUDA graphs: {graphs['sizes']} batch sizes up to {graphs['largest']}, about "
        f"{graphs['size'] / 1e9:.1f} GB (estimate); the mix decodes at most "
        f"{graphs['needed']:,} tokens a step"
    )
    if graphs["needed"] > graphs["largest"]:
        yield f"    larger batches than {graphs['largest']} run without a graph."
    elif graphs["unused"]:
        yield (
            f"    {graphs['unused']} sizes are larger than any such step: "
            f"--max-cudagraph-capture-size {graphs['keep']} frees about "
            f"{graphs['freed'] / 1e9:.2f} GB, {graphs['gained']:,} requests more."
        )
    else:
        yield "    all sizes are in use."
