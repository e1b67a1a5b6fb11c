"""The environment of ranks: exported variables, frameworks and their settings."""
