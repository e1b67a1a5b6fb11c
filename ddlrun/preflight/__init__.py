"""Checks of all hosts before a job starts: their facts, whether they agree, and whether they can connect."""
