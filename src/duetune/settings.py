"""The settings of a home: its folder, and what its ``config.toml`` says.

``$DUETUNE_HOME`` (by default ``~/.duetune``) holds everything. ``config.toml`` may contain:

    database = "postgresql+psycopg://..."   # default: a file in the home
    forecast = "last"
    selector = "adahedge"

    [site]
    fleet = "embedded"                      # or one of `duetune fleet list`, or a plug-in;
                                            # a job may name another one
    market = "diurnal"                      # or trace = "market.csv"
    speed = 1

    [queue]
    gpus = 8                                # limit of all jobs together; default: no limit
    planner = "tutti"

    [queue.quotas]
    vision = 4                              # limit of the jobs of one project together
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from duetune.conversion import refusal
from duetune.core.job import NAME, NAME_WORDS
from duetune.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

HOME = "DUETUNE_HOME"
CONFIG_FILE = "config.toml"
DATABASE_FILE = "duetune.db"
EMBEDDED = "embedded"
"""The name of the fleet on this machine, which every home has."""
OF_FLEET = "fleet"
"""The name of the fleet's own market feed."""


class SiteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where jobs run: the fleet, its market and its GPUs.

    ``fleet``: the fleet of jobs that name none.
    ``feed``: the market feed of that fleet; "fleet" is the fleet's own market.
    ``market``: the synthetic market that the embedded fleet replays.
    ``trace``: a file that replaces ``market``; ``pool`` is one of its pools.
    ``history_slots``: slots of the market that are known before the replay begins.
    ``speed``: market seconds per wall second.
    ``accelerator``, ``memory_gb``: the GPU model and its memory.
    ``max_gpus``: the most GPUs that a job may hold.
    ``gpus_per_node``: the fleet gives only whole nodes of so many GPUs; None means any number.
    ``emulated_microbatch_s``: the least wall seconds that a GPU takes for a microbatch.
    ``grant_delay_s``: seconds until a requested node starts.
    ``notice_s``: seconds between the notice of a preemption and the preemption.
    ``silent_share``: share of preemptions that come without notice.
    ``on_demand_capacity``: on-demand GPUs of the embedded fleet.
    ``startup_s``, ``resize_s``: expected seconds of a first start and of a resize.
    ``warm``: keep the heavy libraries in memory, so that workers start faster.
    """

    fleet: str = EMBEDDED
    feed: str = OF_FLEET
    market: str = "diurnal"
    trace: str | None = None
    pool: str | None = None
    seed: int = 0
    slot_hours: float | None = None
    history_slots: int | None = None
    speed: float = 1.0
    accelerator: str | None = None
    memory_gb: float | None = None
    max_gpus: int = 4
    gpus_per_node: int | None = None
    emulated_microbatch_s: float | None = None
    grant_delay_s: float = 0.5
    notice_s: float = 2.0
    silent_share: float = 0.1
    on_demand_capacity: int = 16
    startup_s: float = 1.5
    resize_s: float = 1.0
    warm: bool = True

    def __post_init__(self) -> None:
        for field, least in (("max_gpus", 1), ("seed", 0), ("on_demand_capacity", 0)):
            if getattr(self, field) < least:
                raise InvalidInput(f"site.{field}", getattr(self, field), f"{least} or more")
        if self.gpus_per_node is not None and self.gpus_per_node < 1:
            raise InvalidInput("site.gpus_per_node", self.gpus_per_node, "1 or more")
        for field in ("speed", "emulated_microbatch_s", "memory_gb", "slot_hours"):
            number = getattr(self, field)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise InvalidInput(f"site.{field}", number, "a number above 0")
        for field in ("grant_delay_s", "notice_s", "startup_s", "resize_s"):
            if not (math.isfinite(getattr(self, field)) and getattr(self, field) >= 0):
                raise InvalidInput(f"site.{field}", getattr(self, field), "seconds, 0 or more")
        if not 0 <= self.silent_share <= 1:
            raise InvalidInput("site.silent_share", self.silent_share, "a share from 0 to 1")


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits on GPUs that jobs hold at once, spot and on-demand together.

    All limits count for each fleet by itself: jobs on two fleets never compete.

    ``planner``: divides the GPUs if the limits are too small for all jobs.
    ``gpus``: limit of all jobs of a fleet; None means no limit.
    ``quotas``: limit of the jobs of each project; a project without an entry has no limit.
    """

    planner: str = "tutti"
    gpus: int | None = None
    quotas: dict[str, int] = {}

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus < 1:
            raise InvalidInput("queue.gpus", self.gpus, "a whole number of GPUs, 1 or more")
        for project, most in self.quotas.items():
            if not re.fullmatch(NAME, project):
                raise InvalidInput("queue.quotas project", project, NAME_WORDS)
            if most < 0:
                field = f"queue.quotas.{project}"
                raise InvalidInput(field, most, "a whole number of GPUs, 0 or more")

    def limit(self, project: str) -> tuple[int, str] | None:
        """Return the most GPUs that a job of ``project`` can ever hold, and the setting's name."""
        limits = [] if self.gpus is None else [(self.gpus, "queue.gpus")]
        if project in self.quotas:
            limits.append((self.quotas[project], f"queue.quotas.{project}"))
        return min(limits, default=None)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a home.

    ``home``: the folder. ``database``: a path or a URL.
    ``forecast``, ``selector``: names of the registry.
    ``configured``: the site of ``config.toml``, where ``site`` is another fleet; see ``on``.
    """

    home: Path
    database: str
    forecast: str = "last"
    selector: str = "adahedge"
    site: SiteSettings = SiteSettings()
    queue: QueueSettings = QueueSettings()
    configured: SiteSettings | None = None

    @property
    def fleet_name(self) -> str:
        """Return the name of the fleet of these settings."""
        return self.site.fleet.strip()

    @property
    def names_in_rows(self) -> tuple[str, ...]:
        """Return what jobs of this fleet have as their fleet in the store.

        Jobs from before fleets were written down have "", and are on the default fleet.
        """
        return (self.fleet_name, "") if self.configured is None else (self.fleet_name,)

    def on(self, fleet: str) -> Settings:
        """Return the settings as seen from another fleet; "" is the default fleet.

        The configured feed is that of the default fleet; any other fleet has its own market.
        """
        default = self.configured or self.site
        name = fleet.strip() or default.fleet.strip()
        if name == default.fleet.strip():
            return msgspec.structs.replace(self, site=default, configured=None)
        site = msgspec.structs.replace(default, fleet=name, feed=OF_FLEET)
        return msgspec.structs.replace(self, site=site, configured=default)

    @property
    def own_paths(self) -> tuple[Path, ...]:
        """Return the home and the files of the database, which no copy of a user's files takes."""
        if "://" in self.database:
            return (self.home,)
        return (self.home, *(Path(f"{self.database}{end}") for end in ("", "-wal", "-shm")))

    @property
    def jobs(self) -> Path:
        """Return the folder of all job folders."""
        return self.home / "jobs"

    @property
    def fleet(self) -> Path:
        """Return the folder of the embedded fleet."""
        return self.home / "fleet"

    def folder(self, job: str) -> Path:
        """Return the folder of a job."""
        return self.jobs / job


class _Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    database: str | None = None
    forecast: str = "last"
    selector: str = "adahedge"
    site: SiteSettings = SiteSettings()
    queue: QueueSettings = QueueSettings()


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of the environment and the home's ``config.toml``; creates nothing."""
    home = Path(environ.get(HOME) or Path.home() / ".duetune").expanduser().absolute()
    if home.exists() and not home.is_dir():
        raise InvalidInput(HOME, str(home), "a folder")
    path = home / CONFIG_FILE
    config = _Config()
    if path.is_file():
        raw: object = None
        try:
            raw = tomllib.loads(path.read_text("utf-8"))
            config = msgspec.convert(raw, _Config)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(CONFIG_FILE, str(path), f"valid TOML ({error})") from None
        except msgspec.ValidationError as error:
            raise refusal(error, raw, _Config).at(f"{CONFIG_FILE} ") from None
        except InvalidInput as error:
            field = f"{CONFIG_FILE} {error.field}"
            raise InvalidInput(field, error.value, error.allowed) from None
        except OSError as error:
            raise InvalidInput(CONFIG_FILE, str(path), f"a file ({error.strerror})") from None
    return Settings(
        home=home,
        database=config.database or str(home / DATABASE_FILE),
        forecast=config.forecast,
        selector=config.selector,
        site=_within(home, config.site),
        queue=config.queue,
    )


def _within(home: Path, site: SiteSettings) -> SiteSettings:
    """Return the site with its trace relative to the home, not to the current folder."""
    if site.trace is None:
        return site
    return msgspec.structs.replace(site, trace=str(home / Path(site.trace).expanduser()))
