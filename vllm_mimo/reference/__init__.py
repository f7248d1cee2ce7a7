"""MiMo-V2 in plain torch: the oracle of the tests and the model that the trainer trains."""
