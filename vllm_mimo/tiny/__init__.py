"""Small MiMo checkpoints: random ones in every real layout, and the pieces that train one."""
