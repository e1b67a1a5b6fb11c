"""The state of a rank's processes, with the stacks of their threads."""
