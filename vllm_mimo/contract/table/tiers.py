"""The KV connector's interface, through which tiers see steps and layers."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_BASE = ("vllm.distributed.kv_transfer.kv_connector.v1.base",)
_OURS = "vllm_mimo.tiers.connector"

_METHODS: dict[str, tuple[tuple[str, ...], str]] = {
    "bind_kv_cache_manager": (("kv_cache_manager",), "the pools to look below"),
    "get_num_new_matched_tokens": (
        ("request", "num_computed_tokens"),
        "what lower tiers add to a hit",
    ),
    "update_state_after_alloc": (
        ("request", "blocks", "num_external_tokens"),
        "must be there; the manager knows already",
    ),
    "build_connector_meta": (("scheduler_output",), "a step's moves go to the workers"),
    "update_connector_output": (("connector_output",), "what workers have finished"),
    "has_pending_push_work": ((), "steps without requests, while blocks go out"),
    "take_events": ((), "there are none"),
    "register_kv_caches": (("kv_caches",), "the device's buffer"),
    "handle_preemptions": (
        ("kv_connector_metadata",),
        "the first that every step calls, before it writes to the cache",
    ),
    "start_load_kv": (("forward_context",), "must be there"),
    "wait_for_layer_load": (("layer_name",), "before a layer's attention, after its write"),
    "save_kv_layer": (("layer_name", "kv_layer", "attn_metadata"), "after a layer's attention"),
    "wait_for_save": ((), "the end of a step"),
    "build_connector_worker_meta": ((), "what a worker has finished"),
    "shutdown": ((), "threads end"),
    "requires_piecewise_for_cudagraph": (("extra_config",), "layers wait for their loads"),
}

TIER_ENTRIES = (
    Entry(
        _BASE,
        "KVConnectorBase_V1",
        used_by=_OURS,
        why="base class",
        attributes=("requires_kv_delivery", "reset_cache"),
    ),
    Entry(
        _BASE,
        "KVConnectorBase_V1.__init__",
        used_by=_OURS,
        why="made by vLLM's factory",
        parameters=("vllm_config", "role", "kv_cache_config"),
    ),
    Entry(
        _BASE,
        "SupportsHMA.request_finished_all_groups",
        used_by=_OURS,
        why="requests end at once: nothing of theirs is sent",
        parameters=("request", "block_ids"),
        overrides=True,
    ),
    *(
        Entry(
            _BASE,
            f"KVConnectorBase_V1.{name}",
            used_by=_OURS,
            why=why,
            parameters=parameters,
            overrides=True,
        )
        for name, (parameters, why) in _METHODS.items()
    ),
    Entry(_BASE, "KVConnectorRole", used_by=_OURS, why="scheduler's or worker's half"),
    Entry(
        _BASE,
        "KVConnectorMetadata",
        used_by="vllm_mimo.tiers.moves",
        why="base class of a step's moves",
    ),
    Entry(
        _BASE,
        "KVConnectorWorkerMetadata.aggregate",
        used_by="vllm_mimo.tiers.moves",
        why="reports of all workers become one",
        parameters=("other",),
        overrides=True,
    ),
    Entry(
        ("vllm.forward_context",),
        "ForwardContext",
        used_by=_OURS,
        why="type of an argument",
    ),
    Entry(
        ("vllm.v1.attention.backend",),
        "AttentionMetadata",
        used_by=_OURS,
        why="type of an argument",
    ),
    Entry(
        ("vllm.v1.outputs",),
        "KVConnectorOutput",
        used_by=_OURS,
        why="carries the workers' reports",
        attributes=("kv_connector_worker_meta",),
    ),
    Entry(
        ("vllm.config",),
        "KVTransferConfig",
        used_by="vllm_mimo.hooks.kv_defaults",
        why="has vLLM make our connector",
        attributes=("kv_connector", "kv_connector_module_path", "kv_role"),
    ),
)
