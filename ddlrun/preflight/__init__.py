"""Look at all hosts before a job starts: what each says of itself, whether they agree, whether they can talk."""
