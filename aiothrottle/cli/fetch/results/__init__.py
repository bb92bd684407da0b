"""What is written and counted: records, bodies, and the progress of a run."""
