"""The scheduler, the requests that it holds and what it hands to the workers."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_SCHEDULER = ("vllm.v1.core.sched.async_scheduler",)
_OURS = "vllm_mimo.scheduling.scheduler"

SCHEDULING_ENTRIES = (
    Entry(
        _SCHEDULER,
        "AsyncScheduler",
        used_by=_OURS,
        why="base class; its KV cache manager is replaced by ours",
        attributes=(
            "block_size",
            "connector",
            "dcp_world_size",
            "hash_block_size",
            "kv_cache_config",
            "kv_cache_manager",
            "max_model_len",
            "num_prefill_lookahead",
            "requests",
            "running",
            "scheduler_config",
            "vllm_config",
        ),
    ),
    *(
        Entry(
            _SCHEDULER,
            f"AsyncScheduler.{name}",
            used_by=_OURS,
            why=why,
            parameters=parameters,
            overrides=True,
        )
        for name, parameters, why in (
            ("add_request", ("request",), "policies see new requests"),
            ("schedule", ("throttle_prefills",), "policies add to a step's output"),
            (
                "update_from_output",
                ("scheduler_output", "model_runner_output"),
                "policies see what a step gave",
            ),
            (
                "_free_request",
                ("request", "delay_free_blocks"),
                "policies see a request end while it holds its blocks",
            ),
            (
                "reset_prefix_cache",
                ("reset_running_requests", "reset_connector"),
                "policies forget what they know of the cache",
            ),
        )
    ),
    Entry(
        ("vllm.v1.core.sched.scheduler",),
        "Scheduler",
        used_by=_OURS,
        why="the plain scheduler, where steps are not scheduled ahead",
    ),
    *(
        Entry(
            ("vllm.v1.core.sched.scheduler",),
            f"Scheduler.{name}",
            used_by=_OURS,
            why="taken instead of the asynchronous one where steps are not scheduled ahead",
            parameters=parameters,
            overrides=True,
        )
        for name, parameters in (
            ("_update_after_schedule", ("scheduler_output",)),
            ("_update_request_with_output", ("request", "new_token_ids", "is_stale")),
        )
    ),
    Entry(
        ("vllm.v1.core.sched.output",),
        "SchedulerOutput",
        used_by="vllm_mimo.scheduling.write_guard",
        why="goes to the workers, with an attribute of ours on it",
        attributes=("num_scheduled_tokens", "total_num_scheduled_tokens"),
    ),
    Entry(
        ("vllm.v1.request",),
        "Request",
        used_by="vllm_mimo.kv.manager",
        why="what is asked of a request",
        attributes=(
            "block_hashes",
            "cache_salt",
            "num_computed_tokens",
            "num_in_flight_tokens",
            "num_output_placeholders",
            "num_preemptions",
            "num_prompt_tokens",
            "num_tokens",
            "prompt_token_ids",
            "request_id",
            "shared_prefix_boundary",
            "status",
        ),
    ),
    Entry(
        ("vllm.v1.request",),
        "RequestStatus",
        used_by="vllm_mimo.kv.manager",
        why="whether a request waits to be admitted",
        attributes=("FINISHED_STOPPED", "PREEMPTED", "RUNNING", "WAITING"),
    ),
    Entry(
        ("vllm.v1.outputs",),
        "ModelRunnerOutput",
        used_by=_OURS,
        why="what a step gave",
    ),
    Entry(
        ("vllm.v1.engine",),
        "EngineCoreOutputs",
        used_by=_OURS,
        why="what is handed to the clients",
    ),
    Entry(
        ("vllm.tokenizers",),
        "cached_tokenizer_from_config",
        used_by="vllm_mimo.scheduling.junctions",
        why="the id of the token that starts a turn",
        parameters=("model_config",),
    ),
    Entry(
        ("vllm.utils.import_utils",),
        "resolve_obj_by_qualname",
        used_by="vllm_mimo.hooks.kv_defaults",
        why="the class that a user named for the scheduler or the worker",
        parameters=("qualname",),
    ),
    Entry(
        ("vllm.config",),
        "SchedulerConfig",
        used_by="vllm_mimo.hooks.kv_defaults",
        why="the scheduler's class, and what a step may hold",
        attributes=(
            "disable_hybrid_kv_cache_manager",
            "max_num_seqs",
            "scheduler_cls",
            "watermark",
        ),
    ),
    Entry(
        ("vllm.config",),
        "SpeculativeConfig.use_eagle_block_drop",
        used_by="vllm_mimo.kv.planning",
        why="whether hits end a block early for the drafter's sake",
    ),
    Entry(
        ("vllm.v1.engine.core",),
        "EngineCore.collective_rpc",
        used_by="vllm_mimo.hooks.weight_updates",
        why="wrapped: remote calls change weights, and with them what is cached",
        parameters=("method",),
    ),
    Entry(
        ("vllm.v1.engine.core",),
        "EngineCore",
        used_by="vllm_mimo.hooks.weight_updates",
        why="announces new weights; holds the scheduler",
        attributes=("scheduler", "set_weight_version"),
    ),
)
