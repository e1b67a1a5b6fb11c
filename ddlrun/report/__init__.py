"""Reports: plans, outcomes and measurements as text, JSON and HTML. Pure: values in, text out."""
