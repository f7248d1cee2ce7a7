"""What has to be asked of a file system before one writes to it through a memory map.

A map's store has no way to fail: where the disk is full it kills the process. Space is therefore
reserved before it is mapped.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_REMOTE = frozenset(
    "afs ceph cifs fuse.glusterfs fuse.juicefs fuse.s3fs fuse.sshfs lustre nfs nfs4 smb3".split()
)
_COPIES_ON_WRITE = frozenset(["bcachefs", "btrfs", "nilfs2", "zfs"])


def reserve(descriptor: int, size: int) -> bool:
    """Give a file's first `size` bytes space on the disk; False if the file system cannot.

    OSError (ENOSPC, EFBIG, EDQUOT) if there is not enough. The C library's `posix_fallocate` is not
    used since it writes every block where the file system lacks the call.
    """
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while call(descriptor, 0, 0, size) != 0:
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))
    return True


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes that an unprivileged user can still write on a folder's file system."""
    figures = os.statvfs(path)
    return figures.f_bavail * figures.f_frsize


def total_bytes(path: str | os.PathLike[str]) -> int:
    """Size of a folder's file system in bytes."""
    figures = os.statvfs(path)
    return figures.f_blocks * figures.f_frsize


def file_system(path: str | os.PathLike[str]) -> str:
    """Type of a folder's file system as the kernel names it, "" if it cannot be told."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted:
            return source.split()[0]
    return ""


def is_remote(kind: str) -> bool:
    """Whether a file system is another machine's, where maps are not coherent."""
    return kind in _REMOTE


def keeps_reservations(kind: str) -> bool:
    """Whether a reserved block can be written again without new space; False if that is unknown."""
    return bool(kind) and kind not in _COPIES_ON_WRITE
