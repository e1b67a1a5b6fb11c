"""Web page of a run: its samples, diagnosis and logs, live or after its end."""
