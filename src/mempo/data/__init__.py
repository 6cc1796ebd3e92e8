"""Questions from the files users have: `questions.py` reads them, `objectives.py` joins several into one."""
