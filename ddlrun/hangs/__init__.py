"""The examination of a job that hangs: the place of each rank, and the rank that the others wait for."""
