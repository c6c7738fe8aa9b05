"""How fast files and checkpoints are in a bucket, next to a folder on this machine.

The bucket is that of a moto server on this machine, or of ``--url``. A moto server is one Python
process without a network in between: its figures show what our side costs, not how fast S3 is.

``make bench`` runs it with ``tests`` on the Python path, because it uses the tests' server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from duetune.storage import open_storage, place_below
from duetune.training.checkpoint import CheckpointStore
from reporting import arguments, finish, markdown_table, publish
from support.pretended_s3 import BUCKET, CREDENTIALS, pretended_s3
from support.storage_faults import FaultyStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = b"x" * 1000


class Figures(NamedTuple):
    """The medians of one place: MB/s for ``upload`` and ``download``, milliseconds for others."""

    upload: float
    download: float
    write: float
    read: float
    claim: float
    save: float
    save_same: float
    latest: float
    latest_again: float
    holds: float


def seconds(action: Callable[[int], object], repeats: int) -> float:
    """Return the median time of an action, which is given the number of the repeat."""
    times = []
    for number in range(repeats):
        began = time.perf_counter()
        action(number)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measured(place: str, folder: Path, size_mb: int, repeats: int) -> Figures:
    """Measure the storage and the checkpoints at a path or URL."""
    storage = open_storage(place_below(place, "files"))
    file, copy = folder / "file", folder / "copy"
    file.write_bytes(os.urandom(size_mb << 20))
    sent = seconds(lambda n: storage.upload(file, f"large/{n}"), repeats)
    received = seconds(lambda n: storage.download(f"large/{n}", copy), repeats)
    written = seconds(lambda n: storage.write(f"small/{n}", SMALL), 10 * repeats)
    read = seconds(lambda n: storage.read(f"small/{n}"), 10 * repeats)
    storage.delete(storage.sizes())

    at = place_below(place, "checkpoints")
    store = CheckpointStore(at, 1, scratch=folder / "scratch")
    claim = seconds(lambda _: store.claim(), 4 * repeats)

    def save(step: int) -> None:
        with file.open("r+b") as changing:
            changing.write(step.to_bytes(8, "big"))
        store.publish(step, file)

    saved = seconds(lambda n: save(n + 1), repeats)
    same = seconds(lambda n: store.publish(n + 1000, file), repeats)
    name = store.publish(2000, file)

    def latest(number: int) -> None:
        CheckpointStore(at, 0, scratch=folder / f"scratch-{number}").latest()

    cold = seconds(latest, repeats)
    warm = seconds(lambda _: latest(0), repeats)
    holds = seconds(lambda _: store.holds(name, 2000), 4 * repeats)
    rates = (size_mb / sent, size_mb / received)
    times = (written, read, claim, saved, same, cold, warm, holds)
    return Figures(*rates, *(1000 * each for each in times))


def calls_of_a_save(url: str, folder: Path) -> int:
    """Return the number of calls of the storage in a save of one file that removes an old one."""
    counting = FaultyStorage(open_storage(place_below(url, "calls")))
    store = CheckpointStore(counting, 1, scratch=folder / "calls")
    for step in range(1, 4):
        (folder / "content").write_text(str(step))
        store.publish(step, folder / "content")
    before = counting.calls
    (folder / "content").write_text("4")
    store.publish(4, folder / "content")
    return counting.calls - before


@contextlib.contextmanager
def bucket(url: str | None) -> Iterator[str]:
    """Yield the URL of the bucket to measure."""
    if url is not None:
        yield f"{url.rstrip('/')}/duetune-benchmark-{os.getpid()}"
        return
    os.environ.update(CREDENTIALS)
    with pretended_s3() as server:
        yield f"s3://{BUCKET}/job?endpoint={server}"


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--url", help="measure a real bucket, such as s3://bucket/prefix")
    options = parser.parse_args()
    size_mb, repeats = (16, 3) if options.quick else (128, 5)
    work = Path(tempfile.mkdtemp(prefix="duetune-storage-"))
    try:
        folder = measured(str(work / "folder"), work, size_mb, repeats)
        shutil.rmtree(work / "scratch", ignore_errors=True)
        with bucket(options.url) as url:
            objects = measured(url, work, size_mb, repeats)
            calls = calls_of_a_save(url, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    rows = [
        ("upload, MB/s", folder.upload, objects.upload),
        ("download, MB/s", folder.download, objects.download),
        ("write 1 kB, ms", folder.write, objects.write),
        ("read 1 kB, ms", folder.read, objects.read),
        ("claim, ms", folder.claim, objects.claim),
        (f"save {size_mb} MB, ms", folder.save, objects.save),
        (f"save the same {size_mb} MB again, ms", folder.save_same, objects.save_same),
        ("latest, ms", folder.latest, objects.latest),
        ("latest, already downloaded, ms", folder.latest_again, objects.latest_again),
        ("holds, ms", folder.holds, objects.holds),
    ]
    table = markdown_table(
        "what | folder | bucket | bucket / folder",
        [(what, ours, theirs, theirs / ours) for what, ours, theirs in rows],
    )
    note = (
        f"Medians of {repeats} or more, on {os.cpu_count()} cores with a load average of "
        f"{os.getloadavg()[0]:.0f}. The bucket is that of a moto "
        "server on the same machine: one Python process that keeps all in memory, without a "
        "network. So the figures show what our side costs, not the speed of a real store, and "
        "nothing was measured on S3, Google Cloud or Azure. `--url` measures a real bucket. The "
        "folder syncs every file to disk; the bucket hashes a file, then sends it. A save in the "
        f"bucket that sends one file and its document and removes an old checkpoint takes {calls} "
        "calls, each file that is deleted counted as one."
    )
    publish(
        "storage",
        "Storage",
        "How fast are files and checkpoints in a bucket, compared with a folder?",
        [table, note],
        write=not (options.no_write or options.quick or options.url),
    )
    figures: dict[str, object] = {
        f"{where}_{name}": round(value, 3)
        for where, found in (("folder", folder), ("bucket", objects))
        for name, value in found._asdict().items()
    }
    finish({**figures, "save_ratio": round(objects.save / folder.save, 3), "calls": calls})


if __name__ == "__main__":
    main()
