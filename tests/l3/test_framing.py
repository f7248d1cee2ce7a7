import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_mimo.l3 import MissCause
from vllm_mimo.l3.framing import PlainFraming, SealedFraming, load_key, make_framing

FRAMINGS = [PlainFraming(), SealedFraming(bytes(range(32)))]
CUTS = st.lists(st.integers(0, 5000), max_size=4)
BOTH = pytest.mark.parametrize("framing", FRAMINGS, ids=["plain", "sealed"])


def split(value, cuts):
    view, edges = memoryview(value), sorted(min(cut, len(value)) for cut in cuts)
    return [view[a:b] for a, b in zip([0, *edges], [*edges, len(value)], strict=True)]


def stored(framing, key, value, cuts=(), total=None):
    frame = framing.seal(key, split(value, cuts), len(value) if total is None else total)
    return bytearray(b"".join(frame))


def read(framing, key, raw, length, cuts=()):
    """What a client does with bytes that an engine has under a key."""
    target = bytearray(length)
    bufs = split(target, cuts)
    frame = framing.space(bufs)
    assert sum(part.nbytes for part in frame) == len(raw) == length + framing.overhead
    start = 0
    for part in frame:
        part[:] = raw[start : start + part.nbytes]
        start += part.nbytes
    return framing.open(key, frame, bufs, length), bytes(target)


@BOTH
@given(value=st.binary(max_size=5000), cuts=CUTS, other_cuts=CUTS)
def test_a_value_comes_back_however_it_is_cut(framing, value, cuts, other_cuts):
    raw = stored(framing, b"key", value, cuts)
    assert read(framing, b"key", raw, len(value), other_cuts) == (None, value)


@BOTH
@pytest.mark.parametrize("cuts", [(), (0, 0)])
def test_a_value_may_be_empty(framing, cuts):
    assert read(framing, b"key", stored(framing, b"key", b""), 0, cuts) == (None, b"")


@BOTH
@settings(max_examples=300)
@given(value=st.binary(min_size=1, max_size=300), place=st.integers(0), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(framing, value, place, bit):
    raw = stored(framing, b"key", value)
    raw[place % len(raw)] ^= 1 << bit
    cause, _ = read(framing, b"key", raw, len(value))
    assert cause in (MissCause.CORRUPT, MissCause.FOREIGN)


@BOTH
@given(value=st.binary(min_size=2, max_size=300), cut=st.integers(1))
def test_a_torn_tail_is_corrupt(framing, value, cut):
    raw = stored(framing, b"key", value)
    lost = 1 + cut % len(value)
    if any(raw[-lost:]):
        raw[-lost:] = bytes(lost)
        assert read(framing, b"key", raw, len(value))[0] is MissCause.CORRUPT


@BOTH
def test_another_keys_value_and_another_length_fail(framing):
    raw = stored(framing, b"key", b"value")
    assert read(framing, b"yek", raw, 5)[0] is MissCause.CORRUPT
    slice_of_more = stored(framing, b"key", b"value", total=10)
    assert read(framing, b"key", slice_of_more, 5)[0] is MissCause.CORRUPT


def test_other_formats_and_keys_are_foreign():
    plain, sealed = FRAMINGS
    value = os.urandom(100)
    other = SealedFraming(bytes(32))
    assert read(other, b"key", stored(sealed, b"key", value), 100)[0] is MissCause.FOREIGN
    raw = bytearray(stored(sealed, b"key", value)[:132])
    assert read(plain, b"key", raw, 100)[0] is MissCause.FOREIGN
    assert read(plain, b"key", bytearray(os.urandom(132)), 100)[0] is MissCause.FOREIGN
    assert read(plain, b"key", bytearray(132), 100)[0] is MissCause.FOREIGN


def test_encrypted_frames_hide_the_value_and_differ_each_time():
    value = b"secret words " * 20
    one, two = (stored(FRAMINGS[1], b"key", value) for _ in range(2))
    assert one != two
    assert b"secret" not in one


def test_key_files(tmp_path):
    file = tmp_path / "key"
    for raw in (bytes(range(32)), bytes(range(32)).hex().encode() + b"\n"):
        file.write_bytes(raw)
        file.chmod(0o600)
        assert load_key(str(file)) == bytes(range(32))
    file.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        load_key(str(file))
    file.chmod(0o600)
    for raw in (b"", b"short", b"x" * 64, bytes(33)):
        file.write_bytes(raw)
        with pytest.raises(ValueError, match="32 raw bytes or 64 hex"):
            make_framing(str(file))
    with pytest.raises(ValueError, match="No such file"):
        load_key(str(tmp_path / "none"))
