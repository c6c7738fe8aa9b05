"""What ``import duetune`` offers for running jobs: plan, launch, status, metrics, amend, explain,
fits, recommend.

Each function does what the command of the same name does, and returns a value that shows itself as
a table in a notebook. All of them take ``home``, the folder of the duetune home; by default it is
``DUETUNE_HOME``, else ``~/.duetune``. Policies, markets and simulations are in their own modules.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from duetune.home import Home

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.jobs.amendment import Amendment
    from duetune.jobs.explain import Explanation
    from duetune.jobs.spec.job_spec import JobSpec
    from duetune.jobs.status import JobStatus
    from duetune.jobs.submit import PreparedJob
    from duetune.knowledge.advice import Advice, Fit
    from duetune.training.metrics import MetricRow

    Folder = str | Path | None


def plan(spec: JobSpec | str | Path, *, seed: int = 0, home: Folder = None) -> PreparedJob:
    """Return how a job would be trained, what it would cost and when it would be done.

    Nothing is started or spent. ``prepared.preflight.findings`` says what is wrong with the job,
    ``prepared.settings`` has every training setting with where it comes from.

        >>> prepared = duetune.plan("job.yaml")
        >>> prepared.quote.document.chosen.cost
        21.53
    """
    return Home(home).plan(spec, seed=seed)


def launch(
    job: PreparedJob | JobSpec | str | Path, *, wait: bool = False, home: Folder = None
) -> JobStatus:
    """Run a job and return its status: at once, or with ``wait`` when the job is over.

    The job runs in processes of its own and goes on when this program ends. This spends money.

        >>> status = duetune.launch("job.yaml")
        >>> status.job.id
        'support-x7k2m'
    """
    from duetune.jobs.submit import PreparedJob

    place = Home(home)
    prepared = job if isinstance(job, PreparedJob) else place.plan(job)
    name = place.launch(prepared)
    return deque(place.follow(name), maxlen=1).pop() if wait else place.status(name)


def status(job: str, *, home: Folder = None) -> JobStatus:
    """Return how a job is doing: steps, GPUs, market, money spent, time left.

    >>> duetune.status("support-x7k2m").progress.step
    120
    """
    return Home(home).status(job)


def metrics(job: str, *, home: Folder = None) -> list[MetricRow]:
    """Return the metrics of every step of a job: losses, learning rate, tokens per second.

    >>> duetune.metrics("support-x7k2m")[-1].eval_loss
    1.3742
    """
    return Home(home).metrics(job)


def amend(
    job: str,
    *,
    deadline: str | None = None,
    budget: str | None = None,
    value: str | None = None,
    priority: int | None = None,
    force: bool = False,
    home: Folder = None,
) -> Amendment:
    """Change the terms of a job that is not finished, and return them with a new quote.

    Terms that cannot be met are refused with ``InvalidInput``, unless ``force`` is set.

        >>> duetune.amend("support-x7k2m", deadline="12h").quote.chosen.cost
        14.2
    """
    place = Home(home)
    amended = place.amendment(
        job, deadline=deadline, budget=budget, value=value, priority=priority, force=force
    )
    place.ask(amended.job.id, amended.request)
    return amended


def explain(job: str, slot: int | None = None, *, home: Folder = None) -> Explanation:
    """Return why a job held what it held: every decision, or one slot in full.

    >>> duetune.explain("support-x7k2m").slots[0].reason
    'on schedule; all 4 spot GPUs are cheaper than on-demand'
    """
    return Home(home).explain(job, slot)


def fits(
    model: str,
    *,
    gpu: str,
    gpus: int | None = None,
    gpus_per_member: int | None = None,
    seq: int | None = None,
    batch: int | None = None,
    method: str | None = None,
    precision: str | None = None,
    sharding: str | None = None,
    optimiser: str = "adamw",
    checkpointing: bool = True,
    rank: int | None = None,
    targets: str | None = None,
    attention: str | None = None,
    software: str | None = None,
    memory_gb: float = 0.0,
    home: Folder = None,
) -> Fit:
    """Return whether fine-tuning ``model`` fits on ``gpu``, and what takes the memory.

    What is left open is as duetune's trainer does it. ``batch`` counts the sequences of all GPUs;
    ``gpus_per_member`` of them share one copy of the model.

        >>> duetune.fits("meta-llama/Llama-3.1-8B", gpu="A100-80GB", seq=4096, batch=4).verdict
        <Verdict.YES: 'yes'>
    """
    from duetune.jobs.fit_question import FitQuestion

    question = FitQuestion(
        model=model,
        gpu=gpu,
        gpus=gpus,
        gpus_per_member=gpus_per_member,
        seq=seq,
        batch=batch,
        method=method,
        precision=precision,
        sharding=sharding,
        optimiser=optimiser,
        checkpointing=checkpointing,
        rank=rank,
        targets=targets,
        attention=attention,
        software=software,
        memory_gb=memory_gb,
    )
    return Home(home).fits(question)


def recommend(
    spec: JobSpec | str | Path | None = None,
    *,
    model: str | None = None,
    gpus: str | None = None,
    price: str | None = None,
    tokens: str | None = None,
    deadline: str | None = None,
    objective: str | None = None,
    method: str | None = None,
    seq: int | None = None,
    batch: int | None = None,
    precision: str | None = None,
    sharding: str | None = None,
    software: str | None = None,
    top: int = 5,
    source: str = "hybrid",
    home: Folder = None,
) -> Advice:
    """Return the best configurations for a job spec, or for ``model``, with the reasons.

    ``gpus`` is what there is to choose from, such as ``"H100:8,L40S:4"``; ``objective`` is
    ``deadline``, ``fastest``, ``gpu-hours`` or ``balanced``.

        >>> advice = duetune.recommend(model="Qwen/Qwen3-8B", gpus="H100:8", tokens="200M")
        >>> advice.chosen.configuration.num_gpus
        1
    """
    from duetune.jobs.advice_request import Wanted

    wanted = Wanted(
        model=model,
        gpus=gpus,
        price=price,
        tokens=tokens,
        deadline=deadline,
        objective=objective,
        method=method,
        seq=seq,
        batch=batch,
        precision=precision,
        sharding=sharding,
        software=software,
        top=top,
    )
    return Home(home).recommend(wanted, spec, source=source)
