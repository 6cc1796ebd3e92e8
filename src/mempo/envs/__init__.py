"""Environments: questions, documents and places to act in."""
