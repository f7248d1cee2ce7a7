"""What our media connector makes of addresses and files, without a server."""

from __future__ import annotations

import asyncio
import io
import zlib
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from PIL import Image

from tests.server import media
from vllm_mimo.media.settings import MediaError
from vllm_mimo.multimodal.connector import CONNECTOR, MimoMediaConnector

RATE = 16_000
TONE = (np.sin(np.arange(RATE) * (2 * np.pi * 440 / RATE)) * 0.25).astype(np.float32)


def tone(container: str, codec: str) -> bytes:
    """One second of TONE in 16 bit integers."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=RATE, layout="mono")
        samples = np.round(TONE * 32768).astype(np.int16)[None]
        layout = "s16p" if codec == "alac" else "s16"
        frame = av.AudioFrame.from_ndarray(samples, format=layout, layout="mono")
        frame.sample_rate = RATE
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def fetch(kind: str, url: str, **options: Any) -> Any:
    """The medium at an address, after a look that both ways of fetching say the same."""
    connector = MimoMediaConnector(**options)
    medium = getattr(connector, f"fetch_{kind}")(url)
    again = asyncio.run(getattr(connector, f"fetch_{kind}_async")(url))
    if kind == "audio":
        np.testing.assert_array_equal(medium[0], again[0])
    return medium


def refusal(kind: str, url: str, **options: Any) -> str:
    connector = MimoMediaConnector(**options)
    with pytest.raises(MediaError) as caught:
        getattr(connector, f"fetch_{kind}")(url)
    with pytest.raises(MediaError) as later:
        asyncio.run(getattr(connector, f"fetch_{kind}_async")(url))
    assert str(caught.value) == str(later.value)
    return str(caught.value)


@pytest.mark.parametrize(("container", "codec"), [("mp4", "alac"), ("mov", "pcm_s16le")])
def test_integer_samples_are_scaled_to_one(container: str, codec: str) -> None:
    """vLLM's FFmpeg path, which files that libsndfile cannot read take, gives 16-bit integers."""
    url = media.data_url("audio/mp4", tone(container, codec))
    samples, rate = fetch("audio", url)
    assert rate == RATE
    np.testing.assert_allclose(samples[:RATE], TONE, atol=1e-4)


def test_wav_is_read_as_libsndfile_reads_it(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", TONE, RATE, subtype="PCM_16")
    expected, _ = soundfile.read(tmp_path / "x.wav", dtype="float32")
    url = (tmp_path / "x.wav").as_uri()
    samples, rate = fetch("audio", url, allowed_local_media_path=str(tmp_path))
    assert rate == RATE
    np.testing.assert_array_equal(samples, expected)


def test_a_decoder_that_the_user_names_is_used() -> None:
    url = media.data_url("audio/mp4", tone("mov", "pcm_s16le"))
    samples, _ = fetch("audio", url, media_io_kwargs={"audio": {"audio_backend": "pyav"}})
    assert abs(samples).max() > 1  # vLLM's own: if this fails, it has been put right


def test_audio_longer_than_vllms_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_AUDIO_DECODE_DURATION_S", "2")
    url = media.data_url("audio/wav", media.wav(3 * RATE))
    assert "more than 2 s of sound" in refusal("audio", url)
    assert fetch("audio", media.data_url("audio/wav", media.wav(RATE)))


def test_files_where_no_folder_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(media.picture(4, 4))
    url = (tmp_path / "x.png").as_uri()
    assert "--allowed-local-media-path" in refusal("image", url)
    assert fetch("image", url, allowed_local_media_path=str(tmp_path))


def test_file_that_is_not_there(tmp_path: Path) -> None:
    url = (tmp_path / "none.png").as_uri()
    message = refusal("image", url, allowed_local_media_path=str(tmp_path))
    assert message == "the file cannot be read: No such file or directory"


def test_data_url_of_another_encoding() -> None:
    assert "data:TYPE;base64,DATA" in refusal("image", "data:image/svg+xml,<svg/>")


def test_picture_that_is_a_bomb() -> None:
    png = media.picture(1, 1)
    side = (20_000).to_bytes(4, "big")
    header = png[12:16] + side + side + png[24:29]
    bomb = png[:12] + header + zlib.crc32(header).to_bytes(4, "big") + png[33:]
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(bomb))
    message = refusal("image", media.data_url("image/png", bomb))
    assert "400000000 pixels" in message


def test_vllm_finds_it_by_its_name() -> None:
    from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

    assert isinstance(MEDIA_CONNECTOR_REGISTRY.load(CONNECTOR), MimoMediaConnector)
