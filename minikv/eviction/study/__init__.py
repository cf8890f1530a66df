"""What an eviction has kept: traces, tasks, and every policy on the same cases."""
