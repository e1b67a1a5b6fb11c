"""Schedules: which rank sends what to whom in a collective, as plain values."""
