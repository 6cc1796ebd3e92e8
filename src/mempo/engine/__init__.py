"""The policy in this process: generation, scoring and updates of a Hugging Face causal language model."""
