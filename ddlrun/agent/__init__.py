"""ddlrun's own process manager: one agent per host, each of which forks the keepers of its host's ranks."""
