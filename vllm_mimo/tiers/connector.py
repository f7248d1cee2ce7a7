"""vLLM's KV connector of the tiers: hands moves to the workers and layers to the mover."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

from vllm_mimo.config import from_vllm_config
from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.kv.spec import TwoPoolConfig
from vllm_mimo.tiers.director import TierDirector, TierPolicy
from vllm_mimo.tiers.moves import TierMoves, TierReport
from vllm_mimo.tiers.setup import make_mover, make_remote

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from vllm_mimo.tiers.mover import TierMover

logger = logging.getLogger("vllm.vllm_mimo")


class MimoTierConnector(KVConnectorBase_V1, SupportsHMA):
    """Host memory and what lies below it, for two KV pools; on with the key 'host_gib'."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if not isinstance(kv_cache_config, TwoPoolConfig) or not kv_cache_config.host_full_blocks:
            raise ValueError(
                "MimoTierConnector is switched on with the key 'host_gib' of a MiMo checkpoint's "
                'config (--additional-config \'{"mimo": {"host_gib": 64}}\'), not by name'
            )
        self.tiers = kv_cache_config
        self.config = from_vllm_config(vllm_config)
        self.director: TierDirector | None = None
        self.mover: TierMover | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Yes: layers wait for their own loads, which a full graph would not."""
        return True

    # --- in the scheduler ------------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Take the manager with two pools; the one that vLLM made before it is left alone."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if isinstance(kv_cache_manager, MimoKVCacheManager):
            config = self._vllm_config
            self.director = TierDirector(
                kv_cache_manager,
                (self.tiers.host_full_blocks, self.tiers.host_window_blocks),
                TierPolicy(self.config.tier_ahead, self.config.tier_backfill),
                config.parallel_config.world_size,
            )
            make_remote(config, self.tiers, self.config, self.director)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self.director is not None
        return self.director.matched(request, num_computed_tokens), False

    def on_new_request(self, request: Request) -> None:
        assert self.director is not None
        self.director.request_added(request)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        assert self.director is not None
        self.director.request_admitted(request)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        assert self.director is not None
        return self.director.build(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, TierReport) and self.director is not None:
            self.director.report(report)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def has_pending_push_work(self) -> bool:
        return self.director is not None and self.director.is_busy

    def reset_cache(self) -> bool | None:
        if self.director is not None:
            self.director.forget()
        return True

    def take_events(self) -> Iterable[Any]:
        return ()

    # --- in a worker -----------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.mover = make_mover(self._vllm_config, self.tiers, kv_caches, self.config)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """The first that a step calls: before anything of it is prepared."""
        assert self.mover is not None and isinstance(kv_connector_metadata, TierMoves)
        self.mover.start(kv_connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Nothing: loads have started in `handle_preemptions`."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        assert self.mover is not None
        self.mover.layer_load(layer_name)

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        assert self.mover is not None
        self.mover.layer_save(layer_name)

    def wait_for_save(self) -> None:
        assert self.mover is not None
        self.mover.end()

    def build_connector_worker_meta(self) -> TierReport | None:
        assert self.mover is not None
        report = self.mover.report()
        return report if report else None

    def shutdown(self) -> None:
        if self.mover is not None:
            self.mover.close()
        if self.director is not None:
            self.director.close()
