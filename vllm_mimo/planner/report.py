"""The plan in words and tables, for a terminal. Everything is read from `summary`'s object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vllm_mimo.planner.inputs import format_tokens
from vllm_mimo.planner.report_advice import advice_lines


def format_report(plan: dict[str, Any]) -> str:
    """All sections of the report. GB are 10^9 bytes."""
    sections = (
        _head(plan),
        _weights(plan),
        _memory(plan),
        _pools(plan),
        _requests(plan),
        _ratio(plan),
        advice_lines(plan),
    )
    return "\n\n".join("\n".join(lines) for lines in sections)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (header, *rows)
    ]


def _head(plan: dict[str, Any]) -> Iterator[str]:
    model, gpu, place, serving = (plan[n] for n in ("model", "gpu", "placement", "serving"))
    yield (
        f"{model['name']}: {model['full_layers']} full-attention and {model['window_layers']} SWA "
        f"layers, {model['experts']} experts; checkpoint of {model['tensors']:,} tensors, "
        f"{model['checkpoint_bytes'] / 1e9:.1f} GB"
    )
    idle = f", {place['idle']} idle" if place["idle"] else ""
    yield (
        f"{place['count']} x {gpu['name']} of {gpu['memory'] / 1e9:.1f} GB ({gpu['source']}): "
        f"{place['instances']} instance{'s' * (place['instances'] != 1)} of TP {place['tp']}, "
        f"EP {place['ep']}, PP {place['pp']}, {place['dp']} attention "
        f"replica{'s' * (place['dp'] != 1)} each{idle}"
    )
    yield (
        f"max_model_len {serving['max_model_len']:,}, max_num_batched_tokens "
        f"{serving['batched_tokens']:,}, max_num_seqs {serving['max_num_seqs']:,}, KV in "
        f"{serving['kv_dtype']}, blocks of {serving['block_size']} tokens, "
        f"{serving['mtp']} MTP layers in use"
    )


def _weights(plan: dict[str, Any]) -> Iterator[str]:
    stages = plan["memory"]["stages"]
    yield "Weights per GPU, GB (the fullest rank; source: the checkpoint's tensors)"
    names = ["GPU"] if len(stages) == 1 else [f"stage {i}" for i in range(len(stages))]
    parts = plan["model"]["checkpoint_parts"]
    rows = [
        [part, _gb(size), *(_gb(stage["weights"][part]) for stage in stages)]
        for part, size in parts.items()
    ]
    total = [_gb(stage["weights_bytes"]) for stage in stages]
    rows.append(["total", _gb(plan["model"]["checkpoint_bytes"]), *total])
    yield from table(["", "checkpoint", *names], rows)


def _memory(plan: dict[str, Any]) -> Iterator[str]:
    gpu, memory = plan["gpu"], plan["memory"]
    yield "Memory per GPU, GB"
    usable = f"{gpu['utilization']:g} of {gpu['memory'] / 1e9:.1f} GB (--gpu-memory-utilization)"
    lines = [("usable", gpu["usable"], usable)]
    weights = [stage["weights_bytes"] for stage in memory["stages"]]
    lines.append(("weights", -max(weights), "above"))
    lines += [(item["name"], -item["size"], item["source"]) for item in memory["others"]]
    budget = min(stage["kv_bytes"] for stage in memory["stages"])
    origin = (
        "--kv-bytes, whatever the lines above leave" if memory["kv_bytes_given"] else "the rest"
    )
    if len(weights) > 1:
        origin += ", least of all stages"
    lines.append(("KV cache", budget, origin))
    for name, size, source in lines:
        yield f"  {name:15}  {size / 1e9:7.2f}  {source}"


def _pools(plan: dict[str, Any]) -> Iterator[str]:
    pools, serving, vllm = plan["pools"], plan["serving"], plan["vllm"]
    chosen = "automatic" if serving["window_fraction"] is None else "--swa-pool-fraction"
    share = f"{pools['window_fraction']:.1%} of the bytes for SWA"
    yield f"Pools of one rank (split: {chosen}, {share})"
    window_gb = pools["window_blocks"] * pools["window_block_bytes"] / 1e9
    full_gb = pools["full_blocks"] * pools["full_block_bytes"] / 1e9
    yield (
        f"  full  {full_gb:7.2f} GB  {pools['full_blocks']:>9,} blocks of "
        f"{pools['full_block_bytes']:,} bytes: {pools['full_tokens']:,} tokens"
    )
    yield (
        f"  SWA   {window_gb:7.2f} GB  {pools['window_blocks']:>9,} blocks of "
        f"{pools['window_block_bytes']:,} bytes: {pools['in_flight_blocks']:,} for the "
        f"{serving['in_flight_tokens']:,} tokens in flight, the rest for windows and tails"
    )
    if not vllm["available"]:
        yield f"  vLLM's own planning is unavailable: {vllm['reason']}"
        return
    kinds = {
        kind: [group for group in vllm["groups"] if group["kind"] == kind]
        for kind in ("full", "SWA")
    }
    yield (
        f"  vLLM {vllm['version']}: one pool of {vllm['num_blocks']:,} blocks of "
        f"{vllm['bytes_per_block']:,} bytes; "
        + ", ".join(
            f"{len(groups)} {kind} group{'s' * (len(groups) != 1)} of "
            f"{'+'.join(str(group['layers']) for group in groups)} layers in blocks of "
            f"{groups[0]['block_size']}"
            for kind, groups in kinds.items()
        )
        + f"; {plan['ratio']['vllm_window_padding']:+.1%} on SWA bytes"
    )


def _requests(plan: dict[str, Any]) -> Iterator[str]:
    replicas = plan["placement"]["replicas"]
    yield (
        "Concurrent requests per attention replica, and their tokens"
        + (f" (there are {replicas} replicas)" if replicas > 1 else "")
    )
    header = ["context", "two pools", "pool full", "tokens"]
    header += ["vLLM settled", "vLLM reserved", "GB/request", "ratio settled", "ratio reserved"]
    rows = []
    for row in plan["requests"]:
        ours, theirs, ratios = row["pools"], row["vllm"], row["bytes_ratio"]
        label = row["label"]
        if row["kind"] == "mix":
            parts = plan["serving"]["context_mix"]
            label = "mix " + "/".join(f"{part['share']:.0%}" for part in parts)
        size = (ours["full_bytes"] + ours["window_bytes"]) / 1e9
        cells = [label, f"{ours['concurrent']:,}", ours["binding"], f"{ours['tokens']:,}"]
        cells += [f"{theirs[how]['concurrent']:,}" if theirs else "n/a" for how in _CHARGES]
        cells.append(f"{size:.3f}")
        rows.append(cells + [f"{ratios[how]:.3f}" if ratios else "n/a" for how in _CHARGES])
    yield from table(header, rows)
    cap = plan["serving"]["max_num_seqs"]
    if any(row["pools"]["concurrent"] > cap for row in plan["requests"]):
        yield f"  (memory alone; max_num_seqs admits {cap:,} per replica)"


_CHARGES = ("settled", "reserved")


def _ratio(plan: dict[str, Any]) -> Iterator[str]:
    ratio = plan["ratio"]
    if ratio is None:
        yield "Bytes per running request against vLLM's: unavailable"
        return
    yield f"Bytes per running request against vLLM's (aim: {ratio['target']:g} or less)"
    yield f"  SWA alone, same window and tokens in flight: {ratio['window']:.3f}, at every length"
    for how, words in (
        ("reserved", "as each planner admits it (vLLM: all tokens in flight, for each request)"),
        ("settled", "decoding (a window and the step's tokens in both)"),
    ):
        lengths = ratio[f"{how}_meets_target"]
        where = (
            f"met from {format_tokens(lengths[0])} to {format_tokens(lengths[1])} tokens"
            if lengths
            else "not met at 1K tokens or more: full KV, equal in both, dominates"
        )
        yield f"  whole request, {words}: {where}"


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f}"
