"""Loading of media for MiMo checkpoints: sound and JPEG by our decoders, and errors that name the
client's.

Registered with vLLM as the media connector `mimo` and chosen for MiMo checkpoints by default
(`hooks/media_defaults.py`). vLLM's own connector answers 500 to broken audio that libsndfile takes
on, to files where no folder is allowed, to data URLs that are not base64 and to pictures that are
bombs to Pillow; and it does not scale integer samples that FFmpeg decodes (ALAC, PCM in MP4).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from vllm import envs
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector, MediaWithBytes
from vllm.multimodal.media.audio import AudioMediaIO
from vllm.multimodal.media.image import ImageMediaIO

from vllm_mimo.media.audio import decode_audio
from vllm_mimo.media.jpeg import decode_jpeg
from vllm_mimo.media.settings import MediaError

CONNECTOR = "mimo"
"""Its name, for the variable `VLLM_MEDIA_CONNECTOR`."""


class MimoAudioIO(AudioMediaIO):
    """Sound files, decoded by FFmpeg; vLLM's way where the user names an `audio_backend`."""

    def load_bytes(self, data: bytes) -> tuple[np.ndarray, float]:
        if self.audio_backend is not None:
            return super().load_bytes(data)
        self._validate_encoded_size(len(data))
        samples, rate = decode_audio(data, longest=envs.VLLM_MAX_AUDIO_DECODE_DURATION_S or None)
        return samples.numpy(), rate

    def load_file(self, filepath: Path) -> tuple[np.ndarray, float]:
        return self.load_bytes(filepath.read_bytes())


class MimoImageIO(ImageMediaIO):
    """Picture files: JPEG in colour as an array, by simplejpeg; all others vLLM's way, by Pillow.

    Both give the same pixels.
    """

    def load_bytes(self, data: bytes) -> MediaWithBytes:
        if self.image_mode in (None, "RGB"):
            pixels = decode_jpeg(data, envs.VLLM_MAX_IMAGE_PIXELS)
            if pixels is not None:
                return MediaWithBytes(pixels, data)
        return super().load_bytes(data)


@contextmanager
def clients_errors() -> Iterator[None]:
    """Make errors of a data URL or a picture that vLLM takes for its own a MediaError."""
    try:
        yield
    except NotImplementedError as error:
        raise MediaError(f"{error} Write it as data:TYPE;base64,DATA") from error
    except Image.DecompressionBombError as error:
        raise MediaError(f"the image cannot be taken: {error} Scale it down") from error


@MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)
class MimoMediaConnector(MediaConnector):
    """vLLM's connector with the differences above."""

    def fetch_image(self, image_url: str, *, image_mode: str | None = "RGB") -> MediaWithBytes:
        return self.load_from_url(
            image_url, self._image_io(image_mode), fetch_timeout=envs.VLLM_IMAGE_FETCH_TIMEOUT
        )

    async def fetch_image_async(
        self, image_url: str, *, image_mode: str | None = "RGB"
    ) -> MediaWithBytes:
        return await self.load_from_url_async(
            image_url, self._image_io(image_mode), fetch_timeout=envs.VLLM_IMAGE_FETCH_TIMEOUT
        )

    def _image_io(self, image_mode: str | None) -> MimoImageIO:
        return MimoImageIO(**({"image_mode": image_mode} | self.media_io_kwargs.get("image", {})))

    def fetch_audio(self, audio_url: str) -> tuple[np.ndarray, float]:
        return self.load_from_url(
            audio_url, self._audio_io(), fetch_timeout=envs.VLLM_AUDIO_FETCH_TIMEOUT
        )

    async def fetch_audio_async(self, audio_url: str) -> tuple[np.ndarray, float]:
        return await self.load_from_url_async(
            audio_url, self._audio_io(), fetch_timeout=envs.VLLM_AUDIO_FETCH_TIMEOUT
        )

    def _audio_io(self) -> MimoAudioIO:
        return MimoAudioIO(**self.media_io_kwargs.get("audio", {}))

    def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        with clients_errors():
            return super().load_from_url(url, media_io, fetch_timeout=fetch_timeout)

    async def load_from_url_async(
        self, url: str, media_io: Any, *, fetch_timeout: int | None = None
    ) -> Any:
        with clients_errors():
            return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)

    def _load_file_url(self, url_spec: Any, media_io: Any) -> Any:
        if self.allowed_local_media_path is None:
            raise MediaError(
                "a file:// address is not taken: the server was started without "
                "--allowed-local-media-path. Send the file in a data URL"
            )
        try:
            return super()._load_file_url(url_spec, media_io)
        except OSError as error:
            raise MediaError(f"the file cannot be read: {error.strerror}") from error
