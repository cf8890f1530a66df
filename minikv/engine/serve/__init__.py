"""Around the loop of steps: what users, files and screens ask of an engine, and no step does."""
