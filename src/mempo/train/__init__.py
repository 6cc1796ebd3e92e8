"""Training: supervised fine-tuning, reinforcement learning, and the state that lets either go on."""
