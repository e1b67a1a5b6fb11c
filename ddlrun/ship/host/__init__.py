"""The part that runs on each host, which may have no ddlrun: it imports the standard library alone."""
