"""What is sent: to which servers, within which limits, and by which workers."""
