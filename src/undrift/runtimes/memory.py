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

MODEST = 4 << 30  # bytes that are taken to be free where nobody can say
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
        if not hasattr(os, "memfd_create"):  # of Linux alone
            return _file(size)
        try:
            fd = os.memfd_create("undrift", os.MFD_CLOEXEC)
        except OSError as error:  # not allowed
            reason = str(error)
        else:
            try:
                _reserve(fd, size)
                return fd
            except OSError as error:
                os.close(fd)
                reason = str(error)
    folder = tempfile.gettempdir()
    warnings.warn(
        f"shared memory is too small ({reason}): {size:,} bytes are kept in a file in {folder}; rounds may be slower",
        stacklevel=2,
    )
    return _file(size)


def _file(size: int) -> int:
    fd, path = tempfile.mkstemp(prefix="undrift")
    os.unlink(path)
    _reserve(fd, size)
    return fd


def _reserve(fd: int, size: int) -> None:
    """Make room for so many bytes: now, where the system can, and not with a bus error at the first write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.truncate(fd, size)


def free_memory() -> int:
    """Bytes that are free, roughly; where a system does not say, as on a small machine."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return MODEST


@functools.cache
def keep_freed_memory() -> None:
    """Have glibc keep what is freed: activations and blocks of vectors are so large that it would give them back at
    every step, and the system would clear the pages again. Elsewhere nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (TypeError, OSError, AttributeError):  # another C library, or none that can be named
        return
    for option, value in ((-3, 32 << 20), (-1, 256 << 20)):  # thresholds of mmap and trim
        mallopt(option, value)
