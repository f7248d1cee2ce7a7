"""vllm-mimo: an out-of-tree vLLM plugin that serves the Xiaomi MiMo-V2 models.

vLLM finds it through the entry point group ``vllm.general_plugins``; nothing here imports vLLM or
torch, so that importing the package is free for the processes that only want its version.
"""

__version__ = "0.1.0"
