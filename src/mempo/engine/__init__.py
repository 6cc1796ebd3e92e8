"""The policy in this process: generation, scoring and updates of any Hugging Face causal language model."""
