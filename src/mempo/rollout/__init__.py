"""One rollout: questions, the language of a turn, contexts, the agent loop, trajectories and their rows."""
