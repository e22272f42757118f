"""Work on a corpus in parts: read by one process, done by many, on one machine or a Ray cluster."""
