"""Two KV pools for MiMo checkpoints: what has to be set before an engine exists.

The scheduler and worker classes are vLLM's own choice of class (`--scheduler-cls`, `--worker-cls`).
A user's class that is no subclass of ours, and a connector that addresses both pools by one block
id, cannot work with two pools and are refused by name.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname

from vllm_mimo.config import MimoConfig, MimoConfigError
from vllm_mimo.hooks import kv_planning, weight_updates
from vllm_mimo.l3.settings import L3Settings
from vllm_mimo.metrics.board import name_instance
from vllm_mimo.tiers.hash_seed import share_hash_seed

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.vllm_mimo")

SCHEDULER = "vllm_mimo.scheduling.scheduler.MimoScheduler"

CPU_WORKER = "vllm_mimo.worker.cpu.MimoCPUWorker"

GPU_WORKER = "vllm_mimo.worker.gpu.MimoGPUWorker"

BLOCK_SIZE = 64
"""Tokens per block unless the user says `--block-size`: half a window, so that a tail is two blocks
without waste, and hits land on every 64th token."""

OFF = 'switch two pools off with --additional-config \'{"mimo": {"two_pools": false}}\''

TIER_CONNECTOR = "MimoTierConnector"
TIER_MODULE = "vllm_mimo.tiers.connector"

CONNECTORS = frozenset({TIER_CONNECTOR})
"""KV connectors that know two block-id spaces."""


def choose_kv(vllm_config: VllmConfig, config: MimoConfig) -> None:
    """Set scheduler, worker, block size and hash for two pools.

    Raises MimoConfigError where a user's own choice cannot be combined with them.
    """
    if not config.two_pools or vllm_config.model_config.runner_type != "generate":
        return
    if vllm_config.scheduler_config.disable_hybrid_kv_cache_manager:
        logger.info("one KV pool: the hybrid KV cache manager is switched off")
        return
    refuse_conflicts(vllm_config)
    _use_scheduler(vllm_config)
    _use_worker(vllm_config)
    if config.host_gib:
        _use_tiers(vllm_config)
    elif config.l3 is not None:
        raise MimoConfigError(
            "mimo config: 'l3' is read and written through host memory: set 'host_gib' too"
        )
    cache = vllm_config.cache_config
    if not cache.user_specified_block_size:
        cache.block_size = BLOCK_SIZE
        cache.user_specified_block_size = True  # else the platform's default replaces it
    if config.prefix_hash == "xxhash":
        cache.prefix_caching_hash_algo = "xxhash" if config.l3 is None else "xxhash_cbor"
    if config.l3 is not None and (folder := L3Settings.parse(config.l3).path):
        share_hash_seed(folder)
    wrap_engine_core()
    name_instance()


def install() -> None:
    """Wrap the engine core where this is its process.

    The configuration is made in another one, the API server's, and comes here as it is.
    """
    if "vllm.v1.engine.core" in sys.modules:
        wrap_engine_core()


def wrap_engine_core() -> None:
    """Let the engine core plan two pools and notice new weights."""
    kv_planning.install()
    weight_updates.install()


def refuse_conflicts(vllm_config: VllmConfig) -> None:
    """Raise MimoConfigError for flags that assume one pool."""
    transfer = vllm_config.kv_transfer_config
    connector = transfer.kv_connector if transfer is not None else None
    if connector is not None and connector not in CONNECTORS:
        raise MimoConfigError(
            f"--kv-transfer-config names the connector {connector!r}, which addresses KV by one "
            "block id, but full-attention and SWA blocks are numbered apart; for KV in host memory "
            f"set the key 'host_gib'. Leave it out, or {OFF}"
        )
    if getattr(vllm_config.cache_config, "kv_offloading_size", None) is not None:
        raise MimoConfigError(
            "--kv-offloading-size switches on an offloading connector of vLLM's, which addresses "
            "KV by one block id; set the key 'host_gib' (GiB a rank) instead, or "
            f"{OFF}"
        )
    parallel = vllm_config.parallel_config
    for flag, size in (
        ("--decode-context-parallel-size", parallel.decode_context_parallel_size),
        ("--prefill-context-parallel-size", parallel.prefill_context_parallel_size),
    ):
        if size > 1:
            raise MimoConfigError(
                f"{flag} {size} splits KV over ranks, which SWA layers do not support; "
                f"leave it at 1, or {OFF}"
            )
    if getattr(getattr(vllm_config, "aux_output_config", None), "enabled", False):
        raise MimoConfigError(
            "auxiliary outputs (aux_output_config) are kept for vLLM's one pool; "
            f"leave them out, or {OFF}"
        )
    if vllm_config.cache_config.prefix_match_unit is not None:
        raise MimoConfigError(
            "--prefix-match-unit is vLLM's for one pool: set --block-size or the key "
            f"'swa_block_size' instead, or {OFF}"
        )


def _use_scheduler(vllm_config: VllmConfig) -> None:
    scheduler = vllm_config.scheduler_config
    if scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = SCHEDULER
        return
    if not is_our_scheduler(scheduler.scheduler_cls):
        raise MimoConfigError(
            f"--scheduler-cls {scheduler.scheduler_cls} is no subclass of "
            f"{SCHEDULER}, which two KV pools need; "
            f"derive it from that class, or {OFF}"
        )


def is_our_scheduler(chosen: object) -> bool:
    """Whether a scheduler class, or its qualified name, is `MimoScheduler` or derived from it."""
    kind = resolve_obj_by_qualname(chosen) if isinstance(chosen, str) else chosen
    return isinstance(kind, type) and issubclass(kind, resolve_obj_by_qualname(SCHEDULER))


def _use_tiers(vllm_config: VllmConfig) -> None:
    """Have vLLM make our connector in the scheduler and in each worker."""
    from vllm.config import KVTransferConfig

    if not vllm_config.cache_config.enable_prefix_caching:
        raise MimoConfigError(
            "mimo config: 'host_gib' keeps KV for later prompts, which --no-enable-prefix-caching "
            "forbids; leave out one of them"
        )
    transfer = vllm_config.kv_transfer_config
    if transfer is not None and transfer.kv_connector is not None:
        return  # ours, chosen before
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector=TIER_CONNECTOR, kv_connector_module_path=TIER_MODULE, kv_role="kv_both"
    )


def _use_worker(vllm_config: VllmConfig) -> None:
    parallel = vllm_config.parallel_config
    ours = CPU_WORKER if current_platform.is_cpu() else GPU_WORKER
    if parallel.worker_cls == "auto":
        parallel.worker_cls = ours
        return
    from vllm_mimo.worker.worker import WorkerSeam

    kind = resolve_obj_by_qualname(parallel.worker_cls)
    if not issubclass(kind, WorkerSeam):
        raise MimoConfigError(
            f"--worker-cls {parallel.worker_cls} has not the plugin's worker seam "
            f"(vllm_mimo.worker.worker.WorkerSeam), which bounded replay needs; add it as its "
            f"first base class, or {OFF}"
        )
