"""Checked gets through the L3 client beside plain LMDB gets with a copy.

    python -m tests.benchmarks.bench_l3 [--sizes 65536 1048576] [--threads 2] [--rounds 15]

Both read the same store with as many threads: the client checks length and checksum of every value
and answers through futures; the plain reader opens a transaction per value and copies it. They take
turns on the same keys and buffers. Prints one JSON line: GB/s (medians) and the client's share of
the plain reader's speed, by value size, and the same for puts into a store that has the room.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lmdb
import numpy as np

from vllm_mimo.l3 import HIT, L3Client, L3Settings, Label, open_client
from vllm_mimo.l3.lmdb_environment import acquire, release

LABEL = Label("bench")
BATCH_BYTES = 128 << 20


class Subject:
    """Values of one size, in a store, and buffers to read them into."""

    def __init__(self, client: L3Client, path: str, size: int, threads: int) -> None:
        self.client, self.threads = client, threads
        self.count = max(threads, min(512, BATCH_BYTES // size))
        rng = np.random.default_rng(size)
        self.values = rng.integers(0, 256, (self.count, size), dtype=np.uint8)
        self.keys = [(0, b"%032d" % (size + number)) for number in range(self.count)]
        self.targets = np.ones_like(self.values)
        self.views = [[memoryview(row)] for row in self.targets]
        self.bytes = self.values.nbytes
        self.env = acquire(path, 0)  # the same one that the client has open
        self.engine_keys = client.keyspace.keys(LABEL.tenant, self.keys)
        self.pool = ThreadPoolExecutor(threads)

    def put(self) -> float:
        start = time.perf_counter()
        transfer = self.client.put(LABEL, self.keys, [[memoryview(row)] for row in self.values])
        assert set(transfer.statuses.result()) == {HIT}
        return time.perf_counter() - start

    def checked(self) -> float:
        start = time.perf_counter()
        transfer = self.client.get_into(LABEL, self.keys, self.views)
        outcomes = transfer.statuses.result()
        taken = time.perf_counter() - start
        assert set(outcomes) == {HIT}
        return taken

    def plain(self) -> float:
        start = time.perf_counter()
        list(self.pool.map(self.plain_share, range(self.threads)))
        return time.perf_counter() - start

    def plain_share(self, share: int) -> None:
        env, table = self.env._env, self.env.tables.values
        for number in range(share, self.count, self.threads):
            with env.begin(buffers=True) as txn:
                value = txn.get(self.engine_keys[number], db=table)
                np.copyto(self.targets[number], np.frombuffer(value, np.uint8, offset=32))
                del value

    def measure(self, rounds: int) -> dict[str, float]:
        put = self.put()
        self.checked(), self.plain()
        times: dict[str, list[float]] = {"checked": [], "plain": []}
        for number in range(rounds):
            for name in ("checked", "plain") if number % 2 else ("plain", "checked"):
                self.targets[:, :64] = 0
                times[name].append(getattr(self, name)())
                assert np.array_equal(self.targets[:, :64], self.values[:, :64])
        checked, plain = (statistics.median(times[name]) for name in ("checked", "plain"))
        ratio = statistics.median(
            b / a for a, b in zip(times["checked"], times["plain"], strict=True)
        )
        release(self.env)
        self.pool.shutdown()
        return {
            "checked_get_gb_s": round(self.bytes / checked / 1e9, 2),
            "plain_get_gb_s": round(self.bytes / plain / 1e9, 2),
            "get_ratio": round(ratio, 3),
            "first_put_gb_s": round(self.bytes / put / 1e9, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1 << 16, 1 << 18, 1 << 20, 4 << 20]
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--path", help="folder for the store; a temporary one by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.path) as folder:
        path = str(Path(folder) / "l3")
        settings = L3Settings(path=path, gib=2.0, io_threads=args.threads, timeout_s=10.0)
        client = open_client(settings, b"bench", "0")
        assert client is not None
        sizes = {
            str(size): Subject(client, path, size, args.threads).measure(args.rounds)
            for size in args.sizes
        }
        client.close()
    print(
        json.dumps({"benchmark": "l3", "threads": args.threads, "lmdb": lmdb.__version__} | sizes)
    )


if __name__ == "__main__":
    main()
