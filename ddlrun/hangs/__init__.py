"""Stalls, and the examination of a job that hangs: snapshots, the position of each rank, and the verdict."""
