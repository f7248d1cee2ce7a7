"""What a step's SchedulerOutput carries from our scheduler to our workers, as attributes."""

WRITE_STARTS = "mimo_write_starts"
"""Request id -> first token whose full KV this step may write. Requests that may write all they
compute are left out."""
