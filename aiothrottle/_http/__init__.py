"""What the integrations of all HTTP clients share; none of the clients is imported here."""
