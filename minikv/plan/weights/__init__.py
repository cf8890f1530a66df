"""The bytes of a model's weights on one rank."""
