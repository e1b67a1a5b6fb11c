"""Large-model support for PyTorch: what is saved for the backward pass waits in the host's memory.

    from ddlrun.ddl import lms

    lms.enable(model)                        # or: with lms.LMS(size_kb=1000, frac=0.7): loss = model(x)

Once the device is `frac` full, the tensors saved longest ago leave it, and come back before the backward pass needs
them. Gradients are the same bits. See docs/how-to/large-models.md.
"""

from ddlrun.ddl.lms.hooks import LMS, enable
from ddlrun.ddl.lms.policy import Policy
from ddlrun.ddl.lms.stats import Stats

__all__ = ["LMS", "Policy", "Stats", "enable"]
