"""Features of the engine: each joins through the hooks of ``Extension``, or replaces a part of the core."""
