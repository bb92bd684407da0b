"""What several test files use: servers, clients, schedules, and times."""
