"""Whole files and folders, run folders, saved rollouts."""
