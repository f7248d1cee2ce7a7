"""Where a video's pictures, their times and its sound stand in the prompt.

One temporal patch is `MM:SS`, then its picture tokens between vision start and end. With sound, the
tokens of the sound heard from one patch's time to the next one's follow its pictures. Source:
SGLang's MiMo-V2 processor; where that one stops at a patch without sound (a track shorter than its
video), such a patch has pictures only here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_mimo.media.settings import TokenIds


def format_timestamp(seconds: float) -> str:
    """`MM:SS`, with as many digits of minutes as it takes."""
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"


def end_of(times: Sequence[float]) -> float:
    """Seconds at which the last of some frames ends: it is taken to last as long as the first, or
    one second where there is one.
    """
    return times[-1] + (times[1] - times[0] if len(times) > 1 else 1.0)


@dataclass(frozen=True, slots=True)
class Group:
    """Temporal patches that stand together, and the sound after them."""

    first: int
    """Index of its first temporal patch, whose time is written."""
    pictures: int
    """Number of temporal patches."""
    sound_start: int
    """Its first audio token among the track's."""
    sound_end: int

    @property
    def sound(self) -> int:
        return self.sound_end - self.sound_start


def group_video(
    times: Sequence[float],
    end: float,
    audio_tokens: int,
    tokens_per_second: float,
    interleave_seconds: float,
) -> list[Group]:
    """Cut a video into groups.

    Args:
        times: seconds at which each temporal patch begins, ascending.
        end: seconds at which the last one ends.
        audio_tokens: tokens of the sound track, 0 without one.
        tokens_per_second: of sound.
        interleave_seconds: 0 for one group a patch, -1 for one in all, else a group's length.
    """
    if not audio_tokens:
        return [Group(i, 1, 0, 0) for i in range(len(times))]
    bounds = [min(int(max(t, 0.0) * tokens_per_second), audio_tokens) for t in (*times, end)]
    if interleave_seconds < 0:
        starts = [0]
    elif interleave_seconds == 0:
        starts = list(range(len(times)))
    else:
        spans = [int(t // interleave_seconds) for t in times]
        starts = [i for i, span in enumerate(spans) if i == 0 or span != spans[i - 1]]
    return [
        Group(first, following - first, bounds[first], max(bounds[first], bounds[following]))
        for first, following in zip(starts, [*starts[1:], len(times)], strict=True)
    ]


def video_tokens(
    groups: Sequence[Group],
    times: Sequence[float],
    picture_tokens: int,
    ids: TokenIds,
    encode: Callable[[str], list[int]],
) -> tuple[list[int], list[bool]]:
    """The token ids that stand for one video, and which of them are replaced by embeddings.

    Args:
        groups: from `group_video`.
        times: seconds of every temporal patch.
        picture_tokens: tokens of one temporal patch.
        ids: the model's special tokens.
        encode: text to token ids, without special tokens.
    """
    tokens: list[int] = [ids.video_start]
    embedded = [False]

    def add(new: list[int], media: bool = False) -> None:
        tokens.extend(new)
        embedded.extend([media] * len(new))

    for group in groups:
        add(encode(format_timestamp(times[group.first])))
        for _ in range(group.pictures):
            add([ids.vision_start])
            add([ids.video] * picture_tokens, media=True)
            add([ids.vision_end])
        if group.sound:
            add([ids.audio_start])
            add([ids.audio] * group.sound, media=True)
            add([ids.audio_end])
    add([ids.video_end])
    return tokens, embedded
