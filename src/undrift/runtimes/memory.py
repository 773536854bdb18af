"""Memory that several processes see, and tensors in it.

A segment is an anonymous file: it has no name, so nothing is left behind however its owners end. It knows bytes and
tensors, and nothing of clients or rounds.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import tempfile
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

Signature = tuple[tuple[str, str, tuple[int, ...]], ...]  # name, type and shape of each tensor

ALIGNMENT = 64  # as torch aligns its own memory: kernels see the same alignment in every process


class Segment:
    """Shared bytes. ``limit``: at most this many in memory; what is larger lies in an unlinked temporary file."""

    def __init__(self, size: int, fd: int | None = None, limit: int | None = None) -> None:
        self.fd = -1
        self.size = max(size, 1)
        self.fd = _anonymous(self.size, limit) if fd is None else fd
        self._bytes = torch.frombuffer(mmap.mmap(self.fd, self.size), dtype=torch.uint8)

    def close(self) -> None:
        """Give the file up; tensors that lie in the memory stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()

    def write(self, offset: int, tensors: Mapping[str, Tensor]) -> Signature:
        """Copy tensors to a place; what is needed to read them again."""
        signature = signature_of(tensors)
        for view, tensor in zip(self.read(offset, signature).values(), tensors.values(), strict=True):
            view.copy_(tensor)
        return signature

    def read(self, offset: int, signature: Signature) -> dict[str, Tensor]:
        """The tensors at a place, without copying."""
        found = {}
        for name, dtype, shape in signature:
            kind = getattr(torch, dtype)
            size = _bytes_of(dtype, shape)
            found[name] = self._bytes[offset : offset + size].view(kind).view(shape)
            offset += _aligned(size)
        return found


def signature_of(tensors: Mapping[str, Tensor]) -> Signature:
    return tuple((name, str(t.dtype)[6:], tuple(t.shape)) for name, t in tensors.items())


def room(signature: Signature) -> int:
    """The bytes that tensors take in a segment."""
    return sum(_aligned(_bytes_of(dtype, shape)) for _, dtype, shape in signature)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    size: int = getattr(torch, dtype).itemsize
    for extent in shape:
        size *= extent
    return size


def _anonymous(size: int, limit: int | None) -> int:
    """A file without a name, in memory if it fits there."""
    reason = f"{size:,} bytes are more than the limit of {limit:,}" if limit is not None and size > limit else ""
    if not reason:
        try:
            fd = os.memfd_create("undrift", os.MFD_CLOEXEC)
        except (AttributeError, OSError) as error:  # not Linux, or not allowed
            reason = str(error)
        else:
            try:
                os.posix_fallocate(fd, 0, size)  # fails now, and not with a bus error at the first write
                return fd
            except OSError as error:
                os.close(fd)
                reason = str(error)
    folder = tempfile.gettempdir()
    warnings.warn(
        f"shared memory is too small ({reason}): {size:,} bytes are kept in a file in {folder}; rounds may be slower",
        stacklevel=2,
    )
    fd, path = tempfile.mkstemp(prefix="undrift", dir=folder)
    os.unlink(path)
    os.posix_fallocate(fd, 0, size)
    return fd


@functools.cache
def keep_freed_memory() -> None:
    """Have glibc keep what is freed: activations and blocks of vectors are so large that it would give them back at
    every step, and the system would clear the pages again. Elsewhere nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((-3, 32 << 20), (-1, 256 << 20)):  # thresholds of mmap and trim
            mallopt(option, value)
