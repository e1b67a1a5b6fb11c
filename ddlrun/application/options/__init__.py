"""Options of the command line or of Python, read into values: nothing beyond this folder sees the dictionary."""
