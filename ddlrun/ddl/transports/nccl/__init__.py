"""Reductions of tensors on devices, by NCCL or through the host's memory."""
