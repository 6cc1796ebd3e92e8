"""What a run's rollouts say about its memory signal: metrics, verdicts, a table, JSON and figures."""
