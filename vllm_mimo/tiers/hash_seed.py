"""One seed for block hashes of all processes that share an L3 folder, across restarts.

vLLM starts its chains of block hashes from `PYTHONHASHSEED`, or from random bytes without it. A
random seed in a private file keeps hashes unpredictable to clients and equal for those who share.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import MutableMapping
from pathlib import Path

logger = logging.getLogger("vllm.vllm_mimo")

VARIABLE = "PYTHONHASHSEED"
FILE = "hash-seed"
_MOST = 4294967295
"""What Python takes for a seed."""


def share_hash_seed(folder: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the seed for processes that are started from now on, unless the user has.

    A folder that cannot be used leaves everything as it is: opening it will say why.
    """
    if environ.get(VARIABLE, "").isdigit():
        return
    try:
        path = Path(folder)
        if not path.exists():
            path.mkdir(mode=0o700)
        environ[VARIABLE] = str(_seed(path / FILE))
    except (OSError, ValueError) as error:
        logger.debug("no common hash seed in %s: %s", folder, error)


def _seed(file: Path) -> int:
    """The seed in a file, which is made if it is not there; two processes may come at once."""
    draft = file.with_name(f"{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
    if not file.exists():
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(str(1 + secrets.randbelow(_MOST)))
        try:
            os.link(draft, file)  # fails where another process was quicker
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    seed = int(file.read_text())
    if not 0 <= seed <= _MOST:
        raise ValueError(f"{file} holds no seed")
    return seed
