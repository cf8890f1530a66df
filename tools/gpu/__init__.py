"""Everything that only a machine with a GPU can say, in parts of under 9 minutes: ``python -m tools.gpu --list``."""
