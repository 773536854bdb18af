"""Where runs are recorded, and what is read from there."""
