"""The script that the process manager starts for each rank, by its path: it imports the modules beside it."""

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, _ROOT)
from ddlrun.keeper.entry import main

sys.path.remove(_ROOT)
if __name__ == "__main__":
    # The launcher adds a colon to a word of colons alone, as mpirun takes a lone colon for its own.
    main([word[1:] if word and not word.strip(":") else word for word in sys.argv[1:]])
