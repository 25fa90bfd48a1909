from tests.support.dockerd import dockerd

__all__ = ["dockerd"]
