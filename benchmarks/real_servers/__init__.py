"""Our clients in front of real servers with real rate limits: see run.py."""
