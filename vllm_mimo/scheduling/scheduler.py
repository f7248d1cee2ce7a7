"""vLLM's asynchronous scheduler over two KV pools, with policies that plug into its steps."""

from __future__ import annotations

import logging
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from vllm_mimo.compat import has_argument
from vllm_mimo.config import from_vllm_config
from vllm_mimo.kv.cache_policy import CachePolicy
from vllm_mimo.kv.manager import MimoKVCacheManager
from vllm_mimo.kv.spec import has_two_pools
from vllm_mimo.scheduling.policy import SchedulingPolicy
from vllm_mimo.scheduling.registry import make_policies

logger = logging.getLogger("vllm.vllm_mimo")


class MimoScheduler(AsyncScheduler):
    """The scheduler of MiMo checkpoints (`--scheduler-cls`, set by default).

    Without two pools (`two_pools: false`) it is vLLM's, with the policies that need none.
    """

    policies: list[SchedulingPolicy]
    kv_cache_manager: KVCacheManager

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.policies = []
        super().__init__(*args, **kwargs)
        self.mimo_config = from_vllm_config(self.vllm_config)
        self.two_pools = has_two_pools(self.kv_cache_config)
        if self.mimo_config.two_pools and not self.two_pools:
            logger.warning("vLLM planned one KV pool: prefix hits follow its rules, not docs/kv.md")
        if self.two_pools:
            self.kv_cache_manager = self._two_pool_manager(self.kv_cache_manager)
            if self.connector is not None:
                self.connector.bind_kv_cache_manager(self.kv_cache_manager)
        self.policies = make_policies(self)

    def _two_pool_manager(self, made: KVCacheManager) -> MimoKVCacheManager:
        """Ours in place of the manager that vLLM's constructor made, with the same settings."""
        more = {}
        if has_argument(KVCacheManager.__init__, "num_hash_lookahead_tokens"):  # 0.33
            more["num_hash_lookahead_tokens"] = self.num_hash_lookahead_tokens
        return MimoKVCacheManager(
            self.kv_cache_config,
            policy=CachePolicy.from_config(self.mimo_config),
            max_model_len=self.max_model_len,
            max_in_flight_tokens=self.vllm_config.max_in_flight_tokens,
            enable_caching=made.enable_caching,
            use_eagle=made.use_eagle,
            num_prefill_lookahead=self.num_prefill_lookahead,
            log_stats=made.log_stats,
            enable_kv_cache_events=made.enable_kv_cache_events,
            dcp_world_size=self.dcp_world_size,
            scheduler_block_size=self.block_size,
            hash_block_size=self.hash_block_size,
            metrics_collector=made.metrics_collector,
            watermark=self.scheduler_config.watermark,
            **more,
        )

    # --- what policies see ---------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        for policy in self.policies:
            policy.request_added(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)
        for policy in self.policies:
            policy.scheduled(output)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for policy in self.policies:
            policy.step_done(scheduler_output, model_runner_output)
        return outputs

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        # vLLM takes its plain scheduler where steps are not scheduled ahead.
        self._kind()._update_after_schedule(self, scheduler_output)

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        return self._kind()._update_request_with_output(
            self, request, new_token_ids, is_stale=is_stale
        )

    def _kind(self) -> type[Scheduler]:
        return AsyncScheduler if self.scheduler_config.async_scheduling else Scheduler

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        for policy in self.policies:
            policy.request_ends(request)
        return super()._free_request(request, delay_free_blocks)

    def weights_changed(self) -> None:
        """Forget what was computed with other weights; called by `hooks.weight_updates`."""
        if self.connector is not None:
            self.connector.reset_cache()
        if isinstance(self.kv_cache_manager, MimoKVCacheManager):
            self.kv_cache_manager.forget_cache()
        for policy in self.policies:
            policy.caches_dropped()

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        for policy in self.policies:
            policy.before_reset()
        dropped = super().reset_prefix_cache(*args, **kwargs)
        if dropped:
            for policy in self.policies:
                policy.caches_dropped()
        return dropped
