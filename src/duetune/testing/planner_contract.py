"""The conformance suite of planners, built in or your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from duetune.core.planning import JobView, Partition, Placement, Plan, Stock, Tenure
from duetune.core.ports import Planner
from duetune.planners.packing import placed

if TYPE_CHECKING:
    from collections.abc import Iterator

    Situation = tuple[list[JobView], Stock]

_ROUND_S = 600.0


class PlannerContract:
    """Subclass it and implement ``make``; override ``situations`` to test on your own.

    Set ``moves`` to False for a planner that never takes GPUs from a running job.
    """

    moves = True

    def make(self) -> Planner:
        """Return the planner under test; called anew in every test."""
        raise NotImplementedError

    def situations(self) -> Iterator[Situation]:
        """Yield rounds of small clusters.

        In the first round all jobs wait. In the second some jobs hold what the planner gave them,
        and some of these must keep it. In the third, spot nodes have gone.
        """
        for seed, count in enumerate((1, 4, 9)):
            random = np.random.default_rng(seed)
            full = stock_of(spot=2, quota=6 if seed else None)
            views = [waiting_job(f"first-{n}", full, random) for n in range(count)]
            yield views, full
            views = [
                *_afterwards(self.make(), views, full, random),
                *(waiting_job(f"second-{n}", full, random) for n in range(3)),
            ]
            yield views, full
            less = stock_of(spot=1, quota=6 if seed else None)
            yield [_where_there(each, less) for each in views], less

    def test_it_is_a_planner_with_a_name(self) -> None:
        """The object implements the ``Planner`` port; its name is stable and one line."""
        planner = self.make()
        assert isinstance(planner, Planner)
        assert planner.name
        assert planner.name == self.make().name
        assert "\n" not in planner.name

    def test_the_same_views_give_the_same_plan(self) -> None:
        """A planner is a value: it keeps no state between rounds."""
        for views, stock in self.situations():
            planner = self.make()
            first = planner.plan(views, stock)
            assert isinstance(first, Plan)
            assert planner.plan(views, stock) == first, "a planner keeps no state of its own"
            assert self.make().plan(views, stock) == first

    def test_what_it_is_shown_stays_as_it_was(self) -> None:
        """``plan`` does not write to its arguments."""
        for views, stock in self.situations():
            before = [(view, view.pace.copy()) for view in views]
            capacity = stock.capacity.copy()
            self.make().plan(views, stock)
            assert views == [view for view, _ in before]
            assert all(np.array_equal(view.pace, pace) for view, pace in before)
            assert np.array_equal(stock.capacity, capacity)

    def test_no_jobs_need_no_plan(self) -> None:
        """Without jobs the plan is empty."""
        assert not self.make().plan([], stock_of()).shapes

    def test_a_job_alone_is_served(self) -> None:
        """A single job gets GPUs."""
        for seed in range(4):
            stock = stock_of(spot=1)
            view = waiting_job("alone", stock, np.random.default_rng(seed))
            assert "alone" in self.make().plan([view], stock).shapes

    def test_a_job_that_nothing_fits_holds_up_nobody(self) -> None:
        """A job without a possible shape does not block others."""
        stock = stock_of()
        random = np.random.default_rng(0)
        hopeless = waiting_job("hopeless", stock, random)
        hopeless = msgspec.structs.replace(hopeless, pace=np.zeros(len(stock.shapes)))
        other = waiting_job("other", stock, random)
        assert set(self.make().plan([hopeless, other], stock).shapes) == {"other"}

    def test_jobs_get_only_shapes_that_are_there_and_fit_them(self) -> None:
        """Shapes are available now and possible for their job."""
        for views, stock in self.situations():
            known = {view.name: view for view in views}
            for name, shape in self.make().plan(views, stock).shapes.items():
                view = known[name]
                assert 0 <= shape < len(stock.shapes)
                assert stock.there[shape]
                assert view.pace[shape] > 0 or (view.pinned and shape == view.held)

    def test_nobody_gets_what_there_is_not(self) -> None:
        """Jobs together get at most the GPUs of each partition."""
        for views, stock in self.situations():
            used = np.zeros(len(stock.partitions), np.int64)
            for shape in self.make().plan(views, stock).shapes.values():
                used[stock.partition[shape]] += stock.gpus[shape]
            assert (used <= stock.capacity).all(), (used, stock.capacity)

    def test_quotas_are_kept(self) -> None:
        """The jobs of a project together get at most its quota."""
        for views, stock in self.situations():
            shapes = self.make().plan(views, stock).shapes
            for project, quota in stock.quotas.items():
                mine = [view for view in views if view.project == project]
                used = sum(int(stock.gpus[shapes[v.name]]) for v in mine if v.name in shapes)
                # Pinned jobs keep their GPUs even if the quota was lowered since.
                stays = sum(int(stock.gpus[view.held]) for view in mine if view.pinned)
                assert used <= max(quota, stays)

    def test_who_is_pinned_keeps_what_it_has(self) -> None:
        """A pinned job keeps its shape."""
        for views, stock in self.situations():
            shapes = self.make().plan(views, stock).shapes
            for view in views:
                if view.pinned:
                    assert shapes.get(view.name) == view.held

    def test_who_is_pinned_stays_even_if_it_is_believed_to_stand_still(self) -> None:
        """A pinned job keeps its shape even with a predicted pace of 0."""
        stock = stock_of()
        random = np.random.default_rng(1)
        view = msgspec.structs.replace(
            _held(waiting_job("busy", stock, random), stock, 0),
            busy=True,
            pace=np.zeros(len(stock.shapes)),
        )
        for others in ([], [waiting_job("other", stock, random)]):
            assert self.make().plan([view, *others], stock).shapes.get("busy") == 0

    def test_priority_comes_first(self) -> None:
        """A planner that moves jobs serves the higher priority first; another moves nobody."""
        stock = Stock((Partition(name="only", gpu_model="A100-80GB", nodes=1, gpus_per_node=4),))
        random = np.random.default_rng(2)
        whole = len(stock.shapes) - 1
        low = _held(waiting_job("low", stock, random), stock, whole)
        low = msgspec.structs.replace(low, priority=0)
        high = msgspec.structs.replace(waiting_job("high", stock, random), priority=1)
        shapes = self.make().plan([low, high], stock).shapes
        if self.moves:
            assert "high" in shapes
        else:
            assert shapes == {"low": whole}

    def test_who_is_not_moved_keeps_what_it_has(self) -> None:
        """With ``moves`` False, every running job keeps its shape."""
        for views, stock in self.situations():
            shapes = self.make().plan(views, stock).shapes
            if not self.moves:
                assert all(shapes.get(view.name) == view.held for view in views if view.held >= 0)

    def test_nodes_are_given_whole_or_in_one_part(self) -> None:
        """``placed`` finds nodes for the plan, and pinned jobs keep theirs."""
        for views, stock in self.situations():
            plan = self.make().plan(views, stock)
            places = placed(plan, views, stock)
            assert set(places) <= set(plan.shapes)
            free = [np.full(each.nodes, each.gpus_per_node) for each in stock.partitions]
            for name, place in places.items():
                shape = stock.shapes[plan.shapes[name]]
                size = stock.partitions[shape.partition].gpus_per_node
                assert place.partition == shape.partition
                assert place.gpus == shape.gpus
                assert len(place.nodes) == shape.nodes
                assert shape.gpus < size or all(gpus == size for _, gpus in place.nodes)
                for node, gpus in place.nodes:
                    free[place.partition][node] -= gpus
            assert all((each >= 0).all() for each in free)
            for view in views:
                if view.pinned:
                    assert places[view.name] == view.placement

    def test_reasons_are_one_line_of_words(self) -> None:
        """Reasons are of known jobs, in words, and on one line."""
        for views, stock in self.situations():
            plan = self.make().plan(views, stock)
            assert set(plan.reasons) <= {view.name for view in views}
            for reason in plan.reasons.values():
                assert any(letter.isalpha() for letter in reason)
                assert "\n" not in reason


def stock_of(*, spot: int = 0, quota: int | None = None) -> Stock:
    """Return a small cluster: two nodes of four GPUs, one of two, and up to two spot nodes."""
    partitions = (
        Partition(name="large", gpu_model="A100-80GB", nodes=2, gpus_per_node=4, price=1.6),
        Partition(name="small", gpu_model="L40S", nodes=1, gpus_per_node=2, price=1.0),
        Partition(
            name="spot",
            gpu_model="A100-80GB",
            nodes=spot,
            gpus_per_node=4,
            tenure=Tenure.SPOT,
            price=0.6,
            most=2,
        ),
    )
    return Stock(partitions, {} if quota is None else {"limited": quota})


def waiting_job(name: str, stock: Stock, random: np.random.Generator) -> JobView:
    """Return a random waiting job that some shapes do not fit."""
    speed = random.uniform(500, 2000, len(stock.partitions))[stock.partition]
    pace = speed * stock.gpus ** random.uniform(0.6, 1.0)
    pace[stock.gpus < random.choice([1, 1, 2])] = 0.0
    return JobView(
        name=name,
        pace=pace,
        remaining=float(random.uniform(1e5, 1e7)),
        age_s=float(random.uniform(0, 60)),
        start_s=60.0,
        restart_s=60.0,
        project=str(random.choice(["", "limited"])),
        priority=int(random.choice([0, 0, 1])),
        deadline_s=float(random.uniform(-600, 7200)) if random.uniform() < 0.5 else None,
    )


def _held(view: JobView, stock: Stock, shape: int) -> JobView:
    """Return the job holding that shape on the first nodes of its partition."""
    form = stock.shapes[shape]
    each = form.gpus // form.nodes
    place = Placement(form.partition, tuple((node, each) for node in range(form.nodes)))
    return msgspec.structs.replace(view, held=shape, placement=place)


def _afterwards(
    planner: Planner, views: list[JobView], stock: Stock, random: np.random.Generator
) -> list[JobView]:
    """Return the jobs one round later, holding what the planner gave them.

    Every third start is still in progress, and every third job may not be moved.
    """
    plan = planner.plan(views, stock)
    places = placed(plan, views, stock)
    found = []
    for number, view in enumerate(views):
        place = places.get(view.name)
        has = place is not None
        found.append(
            msgspec.structs.replace(
                view,
                held=plan.shapes[view.name] if has else -1,
                placement=place,
                busy=has and number % 3 == 1,
                preemptible=number % 3 != 2,
                remaining=view.remaining * float(random.uniform(0.3, 1.0)),
                age_s=view.age_s + _ROUND_S,
                deadline_s=None if view.deadline_s is None else view.deadline_s - _ROUND_S,
            )
        )
    return found


def _where_there(view: JobView, stock: Stock) -> JobView:
    """Return the job without what it held on nodes that have gone."""
    place = view.placement
    if place is None or all(
        node < stock.partitions[place.partition].nodes for node, _ in place.nodes
    ):
        return view
    return msgspec.structs.replace(view, held=-1, placement=None, busy=False)
