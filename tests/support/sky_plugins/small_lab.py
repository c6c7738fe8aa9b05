"""A plug-in of SkyPilot for a lab on one machine without a network.

The jobs controller looks at public addresses before it looks at a job, and waits while they are
away. SkyPilot starts as many controllers as fit into memory; one is enough.
"""

from sky.backends import backend_utils
from sky.server import plugins
from sky.utils import controller_utils


async def _nothing_to_check():
    pass


class SmallLab(plugins.BasePlugin):
    def install(self, extension_context):
        del extension_context
        backend_utils.async_check_network_connection = _nothing_to_check
        controller_utils.MAX_CONTROLLERS = 1
