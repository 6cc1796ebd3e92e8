"""From an action of the policy to an observation."""
