"""The scheduler Toy and its toyrun, for ddlrun."""
