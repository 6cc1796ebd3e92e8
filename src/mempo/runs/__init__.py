"""The run folder: everything a run leaves behind, and everything needed to go on."""
