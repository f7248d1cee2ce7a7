"""The third tier of the KV cache: values by key, outside this process, behind one client.

`open_client` gives a client or None; `L3Client` is what the rest of the plugin talks to; engines
implement `KVEngine`. Nothing here knows vLLM.
"""

from vllm_mimo.l3.client import L3Client
from vllm_mimo.l3.counters import L3Stats
from vllm_mimo.l3.directory import Directory, StaticDirectory, Topology
from vllm_mimo.l3.engine import EngineCaps, EngineUnavailable, KVEngine, Status
from vllm_mimo.l3.keys import BlockKey, KeySpace, Label
from vllm_mimo.l3.open import make_keyspace, open_client
from vllm_mimo.l3.outcome import HIT, MissCause, Outcome
from vllm_mimo.l3.settings import L3Settings
from vllm_mimo.l3.transfer import Transfer

__all__ = [
    "HIT",
    "BlockKey",
    "Directory",
    "EngineCaps",
    "EngineUnavailable",
    "KVEngine",
    "KeySpace",
    "L3Client",
    "L3Settings",
    "L3Stats",
    "Label",
    "MissCause",
    "Outcome",
    "StaticDirectory",
    "Status",
    "Topology",
    "Transfer",
    "make_keyspace",
    "open_client",
]
