"""Calls of SkyPilot's SDK that are not names of the package itself."""

import sky


def enabled_clouds(expand):
    assert expand
    with sky.world() as found:
        return sky.answered(found, "sky.enabled_clouds", None, found["enabled"])


def slurm_node_info(slurm_cluster_name):
    with sky.world() as found:
        held = [row["kind"] for row in found["clusters"].values()]
        machines = [
            {
                "node_name": f"{kind}-{number}",
                "slurm_cluster_name": slurm_cluster_name,
                "node_state": "idle",
                "gpu_type": "GPU",
                "free_gpus": int(number >= held.count(kind)),
                "partition": f"{partition}*,all",
            }
            for kind, partition in (("spot", "spot"), ("on_demand", "guaranteed"))
            for number in range(found["room"][kind])
        ]
        return sky.answered(found, "sky.slurm_node_info", None, machines)
