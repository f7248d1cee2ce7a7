"""Where a checkpoint's audio tokenizer is: a folder of its own beside the weights."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

logger = logging.getLogger("vllm.vllm_mimo")

FOLDER = "audio_tokenizer"


@cache
def audio_tokenizer_folder(
    model: str, revision: str | None = None, download_dir: str | None = None
) -> Path | None:
    """The folder with the tokenizer's config and weights, fetched for a model named by hub name.

    Returns:
        None where the checkpoint has none: it then hears nothing.
    """
    root = Path(model)
    if not root.is_dir():
        from huggingface_hub import snapshot_download

        root = Path(
            snapshot_download(
                model, revision=revision, cache_dir=download_dir, allow_patterns=[f"{FOLDER}/*"]
            )
        )
    folder = root / FOLDER
    if (folder / "config.json").is_file():
        return folder
    logger.warning("'%s' is not there: this checkpoint takes no audio", folder)
    return None
