"""Stay with a running job: take what its ranks write, forward signals, end it whole, and learn why it ended."""
