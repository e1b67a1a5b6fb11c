"""Large-model support for PyTorch: tensors saved for backward are moved to host memory and back.

    from ddlrun.ddl import lms

    lms.enable(model)                        # or: with lms.LMS(size_kb=1000, frac=0.7): loss = model(x)

Once a share `frac` of the device is full, the tensors that were saved first leave it. They come back before backward
needs them. Gradients have the same bits as without. See docs/how-to/large-models.md.
"""

from ddlrun.ddl.lms.hooks import LMS, enable
from ddlrun.ddl.lms.policy import Policy
from ddlrun.ddl.lms.stats import Stats

__all__ = ["LMS", "Policy", "Stats", "enable"]
