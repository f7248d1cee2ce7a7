"""How media are loaded for MiMo checkpoints with towers, unless the user says otherwise."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING

from vllm_mimo.config import MimoConfig
from vllm_mimo.media.decoders.process import set_decoding
from vllm_mimo.media.decoders.registry import decoder
from vllm_mimo.media.settings import MediaSettings
from vllm_mimo.metrics.board import name_instance
from vllm_mimo.multimodal.connector import CONNECTOR
from vllm_mimo.multimodal.video_loader import BACKEND

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.vllm_mimo")

PIXELS_VARIABLE = "VLLM_MAX_IMAGE_PIXELS"
"""vLLM's own limit, which it checks before an image is decoded; it is for all models."""

ENCODER_CACHE = "vllm_mimo.multimodal.encoder_cache.CountingEncoderCacheManager"
"""vLLM's own, with counters; a manager that the user names is kept."""

LOADER_VARIABLE = "VLLM_VIDEO_LOADER_BACKEND"

CONNECTOR_VARIABLE = "VLLM_MEDIA_CONNECTOR"


def choose_media(vllm_config: VllmConfig, config: MimoConfig) -> None:
    """Choose the video loader with this checkpoint's sampling, and the limit of image sizes.

    A user's `--media-io-kwargs` and vLLM's own variables win. How videos are decoded is set for the
    process, where no request can change it. Raises ImportError for a decoder that is not installed.
    """
    model = vllm_config.model_config
    multimodal = model.multimodal_config
    if multimodal is None or not getattr(model.hf_config, "vision_config", None):
        return
    manager = getattr(vllm_config, "ec_manager_config", None)
    if manager is not None and manager.encoder_cache_manager_cls is None:
        manager.encoder_cache_manager_cls = ENCODER_CACHE
        name_instance()
    os.environ.setdefault(PIXELS_VARIABLE, str(config.max_image_pixels))
    os.environ.setdefault(CONNECTOR_VARIABLE, CONNECTOR)
    video = multimodal.media_io_kwargs.setdefault("video", {})
    backend = video.get("video_backend") or os.environ.get(LOADER_VARIABLE) or BACKEND
    if backend != BACKEND:
        logger.info("videos are loaded by %r, as asked for: times are index / fps", backend)
        return
    decoder(config.video_decoder)  # at the start, not at the first video
    set_decoding(
        config.video_decoder, config.video_decode_threads, config.truncated_video == "keep"
    )
    settings = MediaSettings.from_config(model.hf_config)
    sampling = dataclasses.asdict(settings.vision)
    if config.audio_in_video and settings.audio is not None:
        sampling["audio_rate"] = settings.audio.sampling_rate
    video.setdefault("video_backend", BACKEND)
    video.setdefault("num_frames", -1)
    video.setdefault("sampling", sampling)
