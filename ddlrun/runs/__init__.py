"""Runs: their folders, the registry of those under way, and processes that outlived theirs."""
