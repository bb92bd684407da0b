"""What the transports for httpx and for httpx2 share; neither library is imported here."""
