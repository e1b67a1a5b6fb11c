"""Supervision of a running job: output, signals, limits, its end as a whole, and the cause of that end."""
