"""The policy in this process: sampling, scoring, updating."""
