"""A policy behind an OpenAI-compatible server."""
