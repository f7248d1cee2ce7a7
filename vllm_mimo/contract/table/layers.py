"""Building blocks of model classes: layers, ranks, and helpers of pipeline stages."""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry

_DISTRIBUTED = ("vllm.distributed",)
_LINEAR = ("vllm.model_executor.layers.linear",)
_EMBEDDING = ("vllm.model_executor.layers.vocab_parallel_embedding",)
_QUANTIZATION = ("vllm.model_executor.layers.quantization",)
_UTILS = ("vllm.model_executor.models.utils",)
_TEXT = "vllm_mimo.models.text"
_PROJECTION = "vllm_mimo.models.projection"

LAYER_ENTRIES = (
    Entry(
        ("vllm.compilation.decorators",),
        "support_torch_compile",
        used_by=_TEXT,
        why="the model loop is compiled as vLLM's is",
    ),
    Entry(
        _DISTRIBUTED,
        "get_tensor_model_parallel_rank",
        used_by=_PROJECTION,
        why="which heads this rank holds",
    ),
    Entry(
        _DISTRIBUTED,
        "get_tensor_model_parallel_world_size",
        used_by=_PROJECTION,
        why="how many ranks share the heads",
    ),
    Entry(_DISTRIBUTED, "get_pp_group", used_by=_TEXT, why="which layers this stage holds"),
    Entry(
        ("vllm.distributed.parallel_state",),
        "GroupCoordinator",
        used_by=_TEXT,
        why="what get_pp_group returns",
        attributes=("is_first_rank", "is_last_rank"),
    ),
    Entry(
        ("vllm.model_executor.layers.layernorm",),
        "RMSNorm.__init__",
        used_by=_TEXT,
        why="norms of a layer",
        parameters=("hidden_size", "eps"),
    ),
    Entry(
        _LINEAR,
        "RowParallelLinear.__init__",
        used_by=_TEXT,
        why="output projection of attention",
        parameters=("input_size", "output_size", "bias", "quant_config", "prefix"),
    ),
    Entry(
        _LINEAR,
        "ReplicatedLinear.__init__",
        used_by=_PROJECTION,
        why="base class of the block-FP8 QKV projection",
        parameters=("input_size", "output_size", "bias", "quant_config", "prefix"),
    ),
    Entry(
        _LINEAR,
        "QKVParallelLinear.__init__",
        used_by=_PROJECTION,
        why="base class of the QKV projection",
        parameters=(
            "hidden_size",
            "head_size",
            "total_num_heads",
            "total_num_kv_heads",
            "bias",
            "quant_config",
            "prefix",
            "v_head_size",
        ),
    ),
    Entry(
        _LINEAR,
        "QKVParallelLinear",
        used_by=_PROJECTION,
        why="heads of this rank",
        attributes=("num_heads", "num_kv_heads"),
    ),
    Entry(
        ("vllm.model_executor.layers.logits_processor",),
        "LogitsProcessor.__init__",
        used_by=_TEXT,
        why="logits of the served model",
        parameters=("vocab_size",),
    ),
    Entry(
        _LINEAR,
        "UnquantizedLinearMethod",
        used_by=_PROJECTION,
        why="tells a projection that a quantised checkpoint leaves out",
    ),
    Entry(
        _QUANTIZATION,
        "QuantizationConfig.get_quant_method",
        used_by=_PROJECTION,
        why="asked how a projection is stored",
        parameters=("layer", "prefix"),
    ),
    Entry(
        _QUANTIZATION,
        "QuantizationConfig",
        used_by=_PROJECTION,
        why="how a checkpoint is quantised",
    ),
    Entry(
        ("vllm.model_executor.layers.quantization.fp8",),
        "Fp8Config",
        used_by=_PROJECTION,
        why="tells a block-FP8 checkpoint",
        attributes=("is_checkpoint_fp8_serialized", "weight_block_size"),
    ),
    Entry(
        ("vllm.model_executor.layers.rotary_embedding",),
        "get_rope",
        used_by=_TEXT,
        why="rotary embedding of full and window layers, with a base each",
        parameters=("head_size", "max_position", "rope_parameters"),
    ),
    Entry(
        _EMBEDDING,
        "VocabParallelEmbedding.__init__",
        used_by=_TEXT,
        why="token embeddings",
        parameters=("num_embeddings", "embedding_dim", "quant_config", "prefix"),
    ),
    Entry(
        _EMBEDDING,
        "ParallelLMHead.__init__",
        used_by=_TEXT,
        why="LM head",
        parameters=("num_embeddings", "embedding_dim", "quant_config", "prefix"),
    ),
    Entry(_UTILS, "PPMissingLayer", used_by=_TEXT, why="layers of other stages"),
    Entry(
        _UTILS,
        "extract_layer_index",
        used_by=_TEXT,
        why="number of a layer",
        parameters=("layer_name",),
    ),
    Entry(
        _UTILS,
        "make_empty_intermediate_tensors_factory",
        used_by=_TEXT,
        why="what stages hand on",
        parameters=("keys", "hidden_size"),
    ),
    Entry(
        _UTILS,
        "make_layers",
        used_by=_TEXT,
        why="layers of this stage",
        parameters=("num_hidden_layers", "layer_fn", "prefix"),
    ),
    Entry(
        _UTILS,
        "maybe_prefix",
        used_by=_TEXT,
        why="names of parameters",
        parameters=("prefix", "name"),
    ),
    Entry(
        _UTILS,
        "is_pp_missing_parameter",
        used_by="vllm_mimo.models.loading",
        why="weights of other stages are passed over",
        parameters=("name", "model"),
    ),
)
