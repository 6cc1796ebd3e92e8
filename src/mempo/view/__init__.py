"""A run folder looked at by people: pages on this machine, and a report in one file."""
