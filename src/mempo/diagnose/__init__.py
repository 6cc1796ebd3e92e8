"""What a run's rollouts say about its memory signal: measures, verdicts, a table, JSON and figures."""
