"""What is read: the lines of a list, each a job or a problem."""
