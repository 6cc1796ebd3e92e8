"""Studies: many runs from one file, side by side over seeds."""
