"""Attention layers with K and V heads of different width, per platform."""
