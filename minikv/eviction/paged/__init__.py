"""The same policies on a paged cache."""
