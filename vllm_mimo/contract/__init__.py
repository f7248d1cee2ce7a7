"""What the plugin relies on in vLLM, in one table, and two ways to hold a vLLM against it.

``check_installed`` imports the vLLM of this Python; ``check_sources`` reads the sources of any
release without importing them. Both return problems as sentences, none when all is well. A new use
of vLLM anywhere in the plugin begins with an entry in ``vllm_mimo.contract.table``.
"""

from __future__ import annotations

from vllm_mimo.contract.entry import Entry
from vllm_mimo.contract.installed import check_installed
from vllm_mimo.contract.sources import check_sources
from vllm_mimo.contract.table import ENTRIES

__all__ = ["ENTRIES", "Entry", "check_installed", "check_sources"]
