"""Runs: their folders, the registry of running jobs, and processes that outlived their run."""
