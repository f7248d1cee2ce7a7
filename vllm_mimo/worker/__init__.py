"""The plugin's one seam in the workers: from the scheduler's step to the model runner."""
