"""The program that runs on each host beside the user's: it needs the standard library alone."""
