"""Plan and Outcome -> what a person reads. Pure: text in, text out."""
