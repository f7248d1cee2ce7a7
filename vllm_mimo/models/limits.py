"""Sizes that bound a tower's memory."""

PATCHES_AT_ONCE = 65_536
"""Patches that pass the vision tower together: two of the largest pictures."""
