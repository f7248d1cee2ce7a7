"""The plugin's one scheduler class and the policies that plug into it."""
