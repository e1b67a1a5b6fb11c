"""What mpirun starts for each rank, by its path: it only finds the modules beside it."""

import os
import sys

_ABOVE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, _ABOVE)
from ddlrun.rank.keeper import main

sys.path.remove(_ABOVE)
if __name__ == "__main__":
    # One colon more stands before a word of colons alone: mpirun takes a lone one for its own.
    main([word[1:] if word and not word.strip(":") else word for word in sys.argv[1:]])
