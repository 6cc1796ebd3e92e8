"""Write docs/verl-keys.md from the table of verl's keys. Usage: python scripts/verl_keys_reference.py OUT"""

import sys
from pathlib import Path

from mempo.cluster.verl_keys import page

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
