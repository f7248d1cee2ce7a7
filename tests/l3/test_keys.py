import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_mimo.l3 import KeySpace
from vllm_mimo.l3.keys import MAX_KEY_BYTES, slice_key, tenant_prefix

PARTS = st.tuples(
    st.text(max_size=5),
    st.binary(max_size=5),
    st.text(max_size=5),
    st.integers(0, 255),
    st.binary(min_size=1, max_size=32),
    st.integers(0, 65535),
)


def make(parts):
    tenant, fingerprint, rank, group, block_hash, number = parts
    (key,) = KeySpace(fingerprint, rank).keys(tenant, [(group, block_hash)])
    return slice_key(key, number)


@given(PARTS, PARTS)
def test_keys_are_equal_only_if_all_their_parts_are(one, other):
    assert (make(one) == make(other)) == (one == other)
    assert len(make(one)) <= MAX_KEY_BYTES


@given(PARTS, st.text(max_size=5))
def test_a_tenants_keys_and_no_others_start_with_its_prefix(parts, tenant):
    assert make(parts).startswith(tenant_prefix(tenant)) == (parts[0] == tenant)


@pytest.mark.parametrize("key", [(256, b"x"), (-1, b"x"), (0, b""), (0, bytes(33))])
def test_what_does_not_fit_is_refused(key):
    with pytest.raises(ValueError):
        KeySpace(b"f", "0").keys("", [key])
