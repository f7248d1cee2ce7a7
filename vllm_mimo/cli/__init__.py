"""The ``vllm-mimo`` command. One module for each subcommand; see ``vllm_mimo.cli.main``."""
