"""Prepares a campaign that a user asks for: checks, space, chooser and plan."""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.errors import DuetuneError, InvalidInput, MissingExtra
from duetune.knowledge.configurations.configuration import Configurations
from duetune.knowledge.configurations.space import Role, Space
from duetune.knowledge.configurations.space_files import read_space
from duetune.knowledge.facts.gpus import gpu_name
from duetune.knowledge.measure.active import Active
from duetune.knowledge.measure.batch_run import Running
from duetune.knowledge.measure.campaign import Budget, Campaign, CampaignProgress, Label
from duetune.knowledge.measure.choice import (
    BATCH,
    DRAWN,
    Costs,
    Drawn,
    check_measurable,
    drawn,
    start_of,
)
from duetune.knowledge.measure.repeats import Repeating
from duetune.knowledge.measure.surrogate import HoldOut, RidgeEnsemble, learned
from duetune.knowledge.measure.trials import model_config, unmeasurable
from duetune.knowledge.measure.worker_messages import installed_software

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duetune.knowledge.measure.choice import Chooser
    from duetune.knowledge.measure.surrogate import Surrogate
    from duetune.knowledge.observation import Observation

MODES = ("active", "random", "latin-hypercube")
MOST_S = 8.0
_CPU_HANG_S = 900.0
_PACKAGED = Path(__file__).parent / "campaigns"


class NoGpu(DuetuneError):
    """Raised if the machine has no GPU to measure on."""

    code = "no_gpu"
    exit_code = 2


class CampaignRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as a user asks for it.

    - ``most_s``: expected seconds that one configuration may take at most.
    - ``until_flat``: stop once more runs hardly improve the predictions.
    - ``surrogate``: the model that guides the active mode: learned or ridge.
    - ``repeat_share``: share of runs that measure a known configuration again.
    - ``running``: how workers are run.
    """

    space: str
    out: Path
    mode: str = "active"
    minutes: float | None = None
    count: int | None = None
    seed: int = 0
    device: str = "cuda"
    most_s: float = MOST_S
    until_flat: bool = False
    surrogate: str = "learned"
    repeat_share: float = 0.0
    running: Running = Running()


class CampaignPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign would do, without running it.

    - ``cardinality``: number of points of the space.
    - ``already``: number of known observations.
    - ``left_out``: how many points cannot be measured, by reason.
    - ``seconds_each``, ``expected_count``, ``expected_s``: estimated from a random sample.
    """

    cardinality: int
    models: tuple[str, ...]
    gpu: str
    software: str
    already: int
    left_out: dict[str, int]
    seconds_each: float
    expected_count: int
    expected_s: float


def campaign_space(place: str, gpu: str, software: str) -> Space:
    """Return the space of a campaign: a packaged one by name, or one from a file.

    GPU and software of this machine are filled in unless the space names its own. Raises
    ``InvalidInput`` if the space names another GPU, or contains nothing that can be measured.
    """
    packaged = _PACKAGED / f"{place}.yaml"
    if packaged.is_file():
        space = read_space(packaged)
    elif Path(place).name == place and not Path(place).suffix and not Path(place).is_file():
        known = ", ".join(sorted(each.stem for each in _PACKAGED.glob("*.yaml")))
        raise InvalidInput("space", place, f"a file, or one of {known}")
    else:
        space = read_space(Path(place))
    gpus = [str(each) for each in space.values["gpu_model"]]
    if gpus and gpu not in gpus and gpu != "cpu":
        raise InvalidInput("gpu_model", ", ".join(gpus), f"{gpu}, the GPU of this machine")
    domain = space.domains.get("gpu_model")
    if domain is None or domain.role is not Role.FIXED:
        space = space.given({"gpu_model": gpu})
    if "software" not in space.domains:
        space = space.given({"software": software})
    if space.missing:
        raise InvalidInput(space.missing[0], None, "a value: the space has none for it")
    folders = tuple(str(each).removesuffix("/config.json") for each in space.values["model"])
    for model in folders:
        model_config(model)
    if folders != space.values["model"]:
        space = space.with_values("model", folders)
    check_measurable(space)
    return space


def found_gpu(device: str) -> str:
    """Return the name of this machine's GPU, or "cpu"; raises ``NoGpu`` if there is none."""
    for module in ("torch", "transformers", "peft"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra("measuring configurations", "train")
    if device == "cpu":
        return "cpu"
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        command = [tool, "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: S603
        names = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
        if answer.returncode == 0 and names:
            return gpu_name(names[0]) or names[0]
    raise NoGpu(
        "no NVIDIA GPU was found (nvidia-smi names none); run this on a machine with one,"
        " or try it here with --device cpu"
    )


class PreparedCampaign:
    """A checked campaign, ready to be planned or run."""

    def __init__(self, request: CampaignRequest, history: Sequence[Observation] = ()) -> None:
        _check(request)
        self.gpu = found_gpu(request.device)
        self.software = installed_software()
        self.space = campaign_space(request.space, self.gpu, self.software)
        self._request = request
        self._history = list(history)
        self._rng = np.random.default_rng(request.seed)
        slow = {"hang_s": _CPU_HANG_S} if request.device == "cpu" else {}
        self._running = msgspec.structs.replace(
            request.running, device=request.device, seed=request.seed, **slow
        )
        self._costs = Costs(self._running.timing, request.most_s)

    @property
    def seconds(self) -> float:
        """Return the time budget in seconds."""
        return math.inf if self._request.minutes is None else 60 * self._request.minutes

    @property
    def count(self) -> int:
        """Return the maximum number of configurations."""
        return DRAWN if self._request.count is None else self._request.count

    def campaign(self, report: Callable[[CampaignProgress], None] = lambda _: None) -> Campaign:
        """Return the campaign, which ``run`` starts; ``report`` is called with the progress."""
        request = self._request
        name = Path(request.space).stem
        return Campaign(
            request.out,
            self._chooser(),
            self._running,
            Budget(seconds=self.seconds, count=self.count),
            label=Label(
                provenance=f"duetune profile {name} ({request.mode}, seed {request.seed})",
                cluster="one CPU" if self.gpu == "cpu" else f"one {self.gpu}",
            ),
            history=self._history,
            report=report,
            satisfied=HoldOut(RidgeEnsemble).satisfied if request.until_flat else lambda _: False,
        )

    def plan(self, observations: Sequence[Observation] = ()) -> CampaignPlan:
        """Return what the campaign would do; ``observations`` are already in its file."""
        sample = list(drawn(self.space, DRAWN, np.random.default_rng(0), "random"))
        left_out: dict[str, int] = {}
        for each in sample:
            reason = unmeasurable(each)
            if reason is not None:
                left_out[reason] = left_out.get(reason, 0) + 1
        rows = [each for each in sample if unmeasurable(each) is None]
        known = [*self._history, *observations]
        seconds = self._costs.of(Configurations.of(rows), RidgeEnsemble(known))
        bearable = self._costs.bearable(seconds)
        if not bearable.all():
            left_out[f"more than {self._request.most_s:g} s each"] = int((~bearable).sum())
        starts = [start_of(model) for model in {each.model for each in rows}]
        each_s = float(seconds[bearable].mean()) + float(np.mean(starts)) / BATCH
        share = float(bearable.sum()) / len(sample)
        there = max(0, round(self.space.cardinality * share) - len(known))
        count = min(self.count, there)
        if math.isfinite(self.seconds):
            count = min(count, int(self.seconds / each_s))
        return CampaignPlan(
            cardinality=self.space.cardinality,
            models=tuple(str(each) for each in self.space.values["model"]),
            gpu=self.gpu,
            software=self.software,
            already=len(known),
            left_out={
                reason: round(n * self.space.cardinality / len(sample))
                for reason, n in left_out.items()
            },
            seconds_each=each_s,
            expected_count=count,
            expected_s=count * each_s,
        )

    def _chooser(self) -> Chooser:
        """Return the chooser of the mode, with repeats if they are wanted."""
        share = self._request.repeat_share
        chooser = self._new_ones()
        return Repeating(chooser, share, self._rng) if share else chooser

    def _new_ones(self) -> Chooser:
        """Return the chooser of configurations that were not measured."""
        if self._request.mode == "active":
            fit: Callable[[Sequence[Observation]], Surrogate] = (
                learned if self._request.surrogate == "learned" else RidgeEnsemble
            )
            return Active(self.space, self._rng, costs=self._costs, fit=fit)
        return Drawn(
            self.space,
            self._rng,
            self._request.mode,
            count=self.count,
            costs=self._costs,
            fit=RidgeEnsemble,
        )


def _check(request: CampaignRequest) -> None:
    """Raise ``InvalidInput`` for values that no campaign can have."""
    if request.mode not in MODES:
        raise InvalidInput("mode", request.mode, f"one of {', '.join(MODES)}")
    if request.device not in {"cuda", "cpu"}:
        raise InvalidInput("device", request.device, "cuda or cpu")
    if request.minutes is not None and not 0 < request.minutes < math.inf:
        raise InvalidInput("minutes", request.minutes, "a number above 0")
    if request.count is not None and request.count < 1:
        raise InvalidInput("count", request.count, "one or more")
    if not 0 <= request.repeat_share < 1:
        raise InvalidInput("repeat_share", request.repeat_share, "a share from 0 to below 1")
    if not request.most_s > 0:
        raise InvalidInput("most_s", request.most_s, "seconds, above 0")
    if request.minutes is None and request.count is None:
        raise InvalidInput(
            "minutes", None, "a value for minutes or count, because a campaign must end"
        )
