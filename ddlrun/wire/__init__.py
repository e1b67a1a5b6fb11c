"""The connections between ddlrun's processes: authentication, frames, connections, and the event loop."""
