"""The exceptions of SkyPilot that the stand-in raises."""


class ApiServerConnectionError(RuntimeError):
    pass


class ClusterDoesNotExist(ValueError):
    pass


class ResourcesUnavailableError(Exception):
    pass
