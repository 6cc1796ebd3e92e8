"""What a command does, from a configuration to a folder."""
