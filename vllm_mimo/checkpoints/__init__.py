"""What a MiMo-V2 checkpoint holds: geometry, tensor names and shapes, layouts, tokenizer."""
