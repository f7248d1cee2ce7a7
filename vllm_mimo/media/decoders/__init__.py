"""Decoding one video with several decoders at once, by one of several libraries."""
