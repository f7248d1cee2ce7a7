"""Request traces: one reader per format, one form for all of them."""

from vllm_mimo.traces.detect import read_trace
from vllm_mimo.traces.form import Trace, TraceError, TraceRequest

__all__ = ["Trace", "TraceError", "TraceRequest", "read_trace"]
