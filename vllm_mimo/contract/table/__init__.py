"""The table: every class, function, signature, attribute and registry of vLLM that we rely on.

One module for each part of vLLM. Parameters are the ones we pass; list all that vLLM requires.
"""

from __future__ import annotations

from vllm_mimo.contract.table.api import API_ENTRIES
from vllm_mimo.contract.table.attention import ATTENTION_ENTRIES
from vllm_mimo.contract.table.connector import CONNECTOR_ENTRIES
from vllm_mimo.contract.table.engine import ENGINE_ENTRIES
from vllm_mimo.contract.table.kv_blocks import KV_BLOCK_ENTRIES
from vllm_mimo.contract.table.kv_manager import KV_MANAGER_ENTRIES
from vllm_mimo.contract.table.kv_planning import KV_PLANNING_ENTRIES
from vllm_mimo.contract.table.layers import LAYER_ENTRIES
from vllm_mimo.contract.table.media import MEDIA_ENTRIES
from vllm_mimo.contract.table.models import MODEL_ENTRIES
from vllm_mimo.contract.table.processing import PROCESSING_ENTRIES
from vllm_mimo.contract.table.scheduling import SCHEDULING_ENTRIES
from vllm_mimo.contract.table.tiers import TIER_ENTRIES
from vllm_mimo.contract.table.towers import TOWER_ENTRIES
from vllm_mimo.contract.table.workers import WORKER_ENTRIES

ENTRIES = (
    *MODEL_ENTRIES,
    *TOWER_ENTRIES,
    *LAYER_ENTRIES,
    *ATTENTION_ENTRIES,
    *MEDIA_ENTRIES,
    *PROCESSING_ENTRIES,
    *CONNECTOR_ENTRIES,
    *ENGINE_ENTRIES,
    *KV_PLANNING_ENTRIES,
    *KV_MANAGER_ENTRIES,
    *KV_BLOCK_ENTRIES,
    *SCHEDULING_ENTRIES,
    *WORKER_ENTRIES,
    *TIER_ENTRIES,
    *API_ENTRIES,
)
"""Everything, in the order in which it is checked."""
