"""From encoded bytes to what the towers read: decode, sample, resize, normalise, patchify, mel.

Plain functions on bytes, numpy arrays and torch tensors. Nothing here knows vLLM, so that a faster
implementation of one step can take its place.
"""
