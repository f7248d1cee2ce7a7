"""How a model is spread over GPUs: tensor, expert, data and pipeline parallelism.

vLLM's terms: one instance has `pp` stages of `dp` attention replicas of `tp` ranks each. With
expert parallelism the experts of a stage are spread over all its `dp * tp` ranks, whole experts on
each; without it (`ep` 1) every expert is cut into `tp` slices.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_mimo.checkpoints.geometry import AttentionGeometry, TextGeometry
from vllm_mimo.checkpoints.qkv import rank_heads
from vllm_mimo.planner.inputs import PlanError

GPUS_PER_NODE = 8
"""The automatic choice keeps tensor parallelism within this many GPUs."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Numbers of ranks. Make it with `place`, which checks them."""

    count: int
    """GPUs there are."""
    tp: int
    ep: int
    pp: int

    @property
    def dp(self) -> int:
        """Attention replicas in one instance; each has KV pools and requests of its own."""
        return max(1, self.ep // self.tp)

    @property
    def gpus_per_instance(self) -> int:
        return self.tp * self.dp * self.pp

    @property
    def instances(self) -> int:
        return self.count // self.gpus_per_instance

    @property
    def replicas(self) -> int:
        """Attention replicas on all GPUs together."""
        return self.instances * self.dp

    @property
    def idle(self) -> int:
        """GPUs that no instance uses."""
        return self.count - self.instances * self.gpus_per_instance


def place(
    geometry: TextGeometry,
    count: int,
    tp: int | None = None,
    ep: int | None = None,
    pp: int = 1,
) -> Placement:
    """Fill in what is None and check the whole.

    Default: `tp` the most ranks of a node that divide heads and weights; `ep` all ranks of a stage.
    Raises PlanError naming the number that does not fit.
    """
    for option, value in (("--count", count), ("--tp", tp), ("--ep", ep), ("--pp", pp)):
        if value is not None and value < 1:
            raise PlanError(f"{option} must be 1 or more, got {value}")
    if pp > geometry.num_layers:
        raise PlanError(f"--pp {pp} exceeds the model's {geometry.num_layers} layers")
    if pp * (tp or 1) > count:
        raise PlanError(
            f"--tp {tp or 1} times --pp {pp} needs {pp * (tp or 1)} GPUs, --count is {count}"
        )
    ranks = count // pp
    if tp is None:
        tp = _most_tp(geometry, min(ranks, GPUS_PER_NODE), ep)
    _check_tp(geometry, tp)
    if ep is None:
        ep = _most_ep(geometry, ranks, tp)
    experts = geometry.num_experts
    if ep > 1 and (not experts or experts % ep):
        raise PlanError(f"--ep {ep} does not divide the {experts} routed experts")
    if ep > 1 and ep % tp:
        raise PlanError(
            f"--ep {ep} is not a multiple of --tp {tp}: vLLM spreads experts over all ranks of a "
            "stage (give --ep 1 to cut every expert into slices instead)"
        )
    if ep * pp > count:
        raise PlanError(f"--ep {ep} times --pp {pp} needs {ep * pp} GPUs, --count is {count}")
    block = geometry.fp8_block
    if ep == 1 and experts and block and geometry.moe_intermediate_size % (tp * block[0]):
        raise PlanError(
            f"--ep 1 with --tp {tp} cuts experts of width {geometry.moe_intermediate_size} "
            f"within their FP8 blocks of {block[0]}"
        )
    return Placement(count, tp, ep, pp)


def stage_layers(layers: int, pp: int) -> tuple[range, ...]:
    """Decoder layers of each pipeline stage, as vLLM divides them.

    What does not divide evenly goes to the stages before the last, one layer each, from the back.
    """
    sizes = [layers // pp] * pp
    for extra in range(layers % pp):
        sizes[-2 - extra] += 1
    starts = [sum(sizes[:stage]) for stage in range(pp)]
    return tuple(range(a, a + n) for a, n in zip(starts, sizes, strict=True))


def _check_tp(geometry: TextGeometry, tp: int) -> None:
    kinds: dict[str, AttentionGeometry] = {"full": geometry.full, "SWA": geometry.swa}
    for kind, attention in kinds.items():
        try:
            rank_heads(attention, 0, tp)
        except ValueError:
            raise PlanError(
                f"--tp {tp} does not divide the {attention.num_heads} query and "
                f"{attention.num_kv_heads} KV heads of {kind} attention"
            ) from None
    width, block = geometry.intermediate_size, geometry.fp8_block
    if width % (tp * (block[0] if block else 1)):
        raise PlanError(
            f"--tp {tp} does not divide the dense MLP's width {width}"
            + (f" into whole FP8 blocks of {block[0]}" if block else "")
        )


def _most_tp(geometry: TextGeometry, limit: int, ep: int | None) -> int:
    for tp in range(limit, 1, -1):
        if ep is not None and ep > 1 and ep % tp:
            continue
        try:
            _check_tp(geometry, tp)
        except PlanError:
            continue
        return tp
    return 1


def _most_ep(geometry: TextGeometry, ranks: int, tp: int) -> int:
    experts = geometry.num_experts
    fitting = (ep for ep in range(ranks // tp * tp, tp - 1, -tp) if experts and experts % ep == 0)
    return next(fitting, 1)
