"""The quality of evictions: traces, tasks, and every policy on the same cases."""
