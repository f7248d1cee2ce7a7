"""Media on their way through vLLM: parser, processor, video loader, dummies for profiling."""
