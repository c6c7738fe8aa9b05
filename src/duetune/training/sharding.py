"""Splits the model of one member over the member's processes, one GPU each, with torch's FSDP2.

Every layer is put together only while it is computed; each process keeps a shard of it. Gradients
are summed over the processes as soon as a layer has them. A shard holds consecutive rows of a
parameter, so it is one piece of that parameter's place in the flat vector of the whole model.
Checkpoints hold the whole vector and are the same with any number of processes.
"""

from __future__ import annotations

import contextlib
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore, HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor

from duetune.training.flat_parameters import layout_of, trainable
from duetune.training.forward_pass import causal_model
from duetune.training.optimisers import LONGEST, part_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch.distributed.device_mesh import DeviceMesh

    from duetune.training.siblings import Siblings
    from duetune.training.task import TrainingTask

_OPERATION_S = 600.0


class Span(NamedTuple):
    """One parameter: where its shard is in this process's vector, and where in the whole one.

    ``length`` is without padding, which makes the shards of all processes equally long.
    """

    own: int
    whole: int
    length: int


def own_device(siblings: Siblings) -> torch.device:
    """Return the device of this process: the GPU with its number, or the CPU if there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", siblings.place % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def shard(
    model: torch.nn.Module,
    siblings: Siblings,
    device: torch.device,
    dtype: torch.dtype | None,
    folder: Path,
) -> None:
    """Split a model, which is on the CPU, over the processes of this member. All call this at once.

    ``dtype`` is that of the computation; ``folder`` is one that only the job's owner may enter.
    """
    # PEFT calls the model's ``forward`` itself, so what FSDP adds must be on the model inside.
    model = causal_model(model)
    mesh = _mesh(siblings, device, folder)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    # Without this, the outermost parameters would stay together after an evaluation, out of date.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for part in _sharded_modules(model):
        # The loss is divided by the tokens of the whole batch, so gradients are added up as such.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(enable=True)
        if distributed.get_backend() != distributed.Backend.NCCL:
            part.set_custom_all_gather(_Gather(siblings))
            part.set_custom_reduce_scatter(_ReduceScatter(siblings))


def _mesh(siblings: Siblings, device: torch.device, folder: Path) -> DeviceMesh:
    """Return the mesh of this member's processes.

    With a GPU each they use NCCL and meet in a file. Otherwise they use their socket pairs, and
    torch's own group is a stand-in that sends nothing. Gloo would open ports to everyone.
    """
    if not distributed.is_initialized():
        place, count = siblings.place, siblings.count
        if device.type == "cuda" and torch.cuda.device_count() >= count:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = siblings.texts(uuid.uuid4().hex)[0]
            distributed.init_process_group(
                "nccl",
                store=FileStore(str(folder / name), count),
                rank=place,
                world_size=count,
                timeout=timedelta(seconds=_OPERATION_S),
                device_id=device,
            )
        else:
            distributed.init_process_group("fake", store=HashStore(), rank=place, world_size=count)
    return init_device_mesh(device.type, (siblings.count,))


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers of the model: the members of its longest list of modules."""
    lists = [list(part) for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])


def _sharded_modules(model: torch.nn.Module) -> Iterator[FSDPModule]:
    return (part for part in model.modules() if isinstance(part, FSDPModule))


class _OverSockets:
    """What FSDP's two operations have in common over the socket pairs of a member."""

    def __init__(self, siblings: Siblings) -> None:
        self._siblings = siblings

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_OverSockets, AllGather):
    """FSDP's all-gather over the socket pairs of a member."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        del group, async_op
        found = self._siblings.collective.gather(input_tensor)
        for place, part in zip(output_tensor.view(len(found), -1), found, strict=True):
            place.copy_(part.flatten())


class _ReduceScatter(_OverSockets, ReduceScatter):
    """FSDP's reduce-scatter over the socket pairs of a member; only sums are asked for."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        op: distributed.ReduceOp.RedOpType | distributed.ReduceOp,
        async_op: bool = False,
    ) -> None:
        del group, op, async_op
        total = input_tensor.clone()
        self._siblings.collective.add_up(total)
        own = total.view(self._siblings.count, -1)[self._siblings.place]
        output_tensor.copy_(own.view_as(output_tensor))


class ShardedParameters:
    """This process's shards of the trainable parameters as one vector, like ``FlatParameters``.

    - ``layout``: a digest of the whole model's parameters.
    - ``decaying``: the length of the part with weight decay.
    - ``whole_size``, ``whole_decaying``: the same lengths of the whole model's vector.
    """

    def __init__(self, model: torch.nn.Module, task: TrainingTask, place: int) -> None:
        named = trainable(model)
        self.layout = layout_of(named, task)
        held = {
            id(each.sharded_param): each
            for part in _sharded_modules(model)
            if (group := part._get_fsdp_state()._fsdp_param_group) is not None  # noqa: SLF001
            for each in group.fsdp_params
        }
        self._shards = [held[id(parameter)] for _, parameter in named]
        self._names = [name for name, _ in named]
        self._parameters = [cast("DTensor", parameter) for _, parameter in named]
        sizes = [each._sharded_param_data.numel() for each in self._shards]  # noqa: SLF001
        self.size = sum(sizes)
        first = self._parameters[0].to_local()
        self.values = torch.zeros(self.size, dtype=first.dtype, device=first.device)
        self.spans: list[Span] = []
        own = whole = 0
        self.decaying = self.whole_decaying = 0
        for fsdp, parameter, size in zip(self._shards, self._parameters, sizes, strict=True):
            local = parameter.to_local().detach()
            begin = min(place * size, parameter.numel())
            self.spans.append(Span(own, whole + begin, local.numel()))
            # FSDP keeps the padded shard and a view of it as the parameter. Both now lie in one
            # vector: FSDP itself replaces them in the same way when a model is moved.
            self.values[own : own + local.numel()].copy_(local.flatten())
            fsdp._sharded_param_data = self.values[own : own + size]  # noqa: SLF001
            parameter._local_tensor = self.values[own : own + local.numel()].view_as(local)  # noqa: SLF001
            own, whole = own + size, whole + parameter.numel()
            if parameter.ndim >= 2:
                self.decaying, self.whole_decaying = own, whole
        self.whole_size = whole

    def views(self, vector: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and parts of a vector like ``values``, in the shapes of the shards."""
        for name, span, parameter in zip(self._names, self.spans, self._parameters, strict=True):
            yield name, vector[span.own : span.own + span.length].view_as(parameter.to_local())

    @contextlib.contextmanager
    def collecting_into(self, row: torch.Tensor) -> Iterator[None]:
        """Add the gradients of the backward passes inside the block to ``row``."""
        for parameter, (_, place) in zip(self._parameters, self.views(row), strict=True):
            parameter.grad = DTensor.from_local(
                place,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        yield
        for parameter in self._parameters:
            parameter.grad = None

    def refresh(self) -> None:
        """Do nothing: FSDP reads the vector itself before every layer."""

    def whole_length(self, name: str, array: torch.Tensor) -> int:
        """Return the length of an array of the state for the whole model, given its first piece."""
        _, _, own, whole = self._part(name)
        return whole if array.numel() in {own, LONGEST} else array.numel()

    def put(self, name: str, array: torch.Tensor, whole: torch.Tensor) -> None:
        """Copy this process's shard of an array into that of the whole model.

        ``name`` may be that of a piece; ``whole`` has all pieces.
        """
        begin = LONGEST * part_of(name.partition(".")[0])[1]
        if array.numel() not in {self._part(name)[2] - begin, LONGEST}:
            # A number such as a count of steps, which is the same in every process.
            whole.copy_(array.flatten())
            return
        for mine, there in self._slices(name, begin, array.numel()):
            whole[there].copy_(array.flatten()[mine])

    def take(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """Return this process's shard of an array of the whole model."""
        _, _, own, total = self._part(name)
        if whole.numel() != total:
            return whole
        array = torch.zeros(own, dtype=whole.dtype)
        for mine, there in self._slices(name, 0, own):
            array[mine] = whole[there]
        return array

    def _slices(self, name: str, begin: int, length: int) -> Iterator[tuple[slice, slice]]:
        """Yield where the shards are in ``length`` elements of this process's part from ``begin``
        on, and where in that of the whole model.
        """
        own, whole, _, _ = self._part(name)
        for span in self.spans:
            first = max(span.own, own + begin)
            count = min(span.own + span.length, own + begin + length) - first
            if count > 0:
                mine, there = first - own - begin, span.whole + first - span.own - whole
                yield slice(mine, mine + count), slice(there, there + count)

    def _part(self, name: str) -> tuple[int, int, int, int]:
        """Return where the part of an array begins, and its lengths, here and in the whole."""
        match part_of(name.partition(".")[0])[0]:
            case "decaying":
                return 0, 0, self.decaying, self.whole_decaying
            case "other":
                rest = self.size - self.decaying, self.whole_size - self.whole_decaying
                return self.decaying, self.whole_decaying, *rest
            case _:
                return 0, 0, self.size, self.whole_size
