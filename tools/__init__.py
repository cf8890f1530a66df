"""What builds the course: not shipped in the wheel."""
