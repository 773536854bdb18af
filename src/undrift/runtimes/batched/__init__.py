"""The runtime in which many clients are one tensor program."""

from undrift.runtimes.batched.runtime import Batched

__all__ = ["Batched"]
