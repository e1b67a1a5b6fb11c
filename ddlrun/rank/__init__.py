"""What runs on each host, beside the user's program: the standard library alone, as that host has it."""
