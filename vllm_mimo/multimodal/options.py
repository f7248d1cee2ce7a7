"""What a user may change of media preparation, by `mm_processor_kwargs`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_mimo.media.settings import MediaError

VLLM_AUDIO_IN_VIDEO = "use_audio_in_video"
"""vLLM's own option of other models: it sends a video's sound as a second item."""

IGNORED = frozenset({"truncation", "padding", "return_tensors", "device"})
"""What vLLM passes to every processor; nothing here depends on it."""


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """Options of one request, or of the server (`--mm-processor-kwargs`)."""

    min_pixels: int | None = None
    """Of a resized picture or frame."""
    max_pixels: int | None = None
    audio_in_video: bool = True
    """Hear a video's sound track, in place."""

    def __post_init__(self) -> None:
        for name in ("min_pixels", "max_pixels"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise MediaError(f"mm_processor_kwargs: {name!r} must be a positive integer")
        if type(self.audio_in_video) is not bool:
            raise MediaError("mm_processor_kwargs: 'audio_in_video' must be true or false")

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, object]) -> MediaOptions:
        """Raises MediaError for an option that does not exist, naming those that do."""
        given = {name: value for name, value in kwargs.items() if name not in IGNORED}
        theirs = given.pop(VLLM_AUDIO_IN_VIDEO, None)
        if theirs:
            raise MediaError(
                f"mm_processor_kwargs: {VLLM_AUDIO_IN_VIDEO!r} would send a video's sound a second "
                "time; MiMo hears it in place by default ('audio_in_video'): leave it out"
            )
        if theirs is not None:
            given.setdefault("audio_in_video", False)
        known = [field.name for field in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise MediaError(
                    f"mm_processor_kwargs: unknown option {name!r}; known: {', '.join(known)} "
                    "(frames are chosen by media_io_kwargs: fps, num_frames, max_frames)"
                )
        return cls(**given)  # type: ignore[arg-type]
