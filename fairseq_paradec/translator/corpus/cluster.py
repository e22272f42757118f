"""Workers on a Ray cluster: an actor for each GPU, or for some cores."""

import contextlib
import importlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from ... import extras
from ...errors import UsageError, option_error
from .crews import Load, Lost, Outcome

#: Seconds after which it is said that nothing came, and after which a cluster is given up that has
#: had no machine for a worker all the time.
PATIENCE, GIVEN_UP = 60, 600


def connect(address: str) -> Any:
    """Connect to a cluster; return Ray's module.

    Raises:
        UsageError: Ray is not installed, there is no cluster, or it has another version.
    """
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # 20 take 12 minutes at another server
    with extras.named(f"--cluster {address}"):
        ray: Any = importlib.import_module("ray")
    host, _, port = address.rpartition(":")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if host and port.isdecimal() and "/" not in host:
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray waits a minute
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, ValueError) as error:
        allowed = f"local, auto, or the HOST:PORT of a Ray cluster; there is none ({error})"
        raise option_error("--cluster", address, allowed) from error
    except RuntimeError as error:
        ray.shutdown()
        reason = " ".join(str(error).split())
        allowed = f"a cluster with the same Ray ({ray.__version__}) and Python; {reason}"
        raise option_error("--cluster", address, allowed) from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray sets its own
    return ray


class Actor:
    """A worker; Ray makes it on one of its machines."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def ready(self) -> None:
        """Load the model.

        Raises:
            UsageError: it cannot be loaded on this machine, which is named.
        """
        try:
            self._work = self._load()
        except (UsageError, OSError) as error:
            raise UsageError(f"{error} (on the machine {socket.gethostname()})") from error

    def do(self, name: str, work: Any) -> tuple[str, bytes]:
        """Do a part; return its name and content."""
        return name, self._work(work)


class Actors:
    """Workers of a cluster. One of a machine that is lost waits for room on another.

    Args:
        address: ``HOST:PORT``, or ``auto``.
        load: makes a worker.
        size: how many; None: as many as the cluster has room for.
        cpus: cores of each.
        gpus: of each.
        give_up: seconds without a machine that could be a worker's, after which the work ends.
    """

    depth = 2

    def __init__(
        self,
        address: str,
        load: Load,
        size: int | None,
        cpus: int,
        gpus: int,
        give_up: float = GIVEN_UP,
    ) -> None:
        self.load, self.address, self.give_up = load, address, give_up
        self._seen = time.monotonic()  # when there was a machine
        self.ray = connect(address)
        self._class = self.ray.remote(Actor).options(num_cpus=cpus, num_gpus=gpus)
        self._kind, self._each = ("GPU", gpus) if gpus else ("CPU", cpus)
        has = self.ray.cluster_resources().get(self._kind, 0)
        if size is None and has < self._each:
            self.ray.shutdown()
            allowed = f"one with {self._each} {self._kind}; it has {has:g}"
            raise option_error("--cluster", address, allowed)
        self.size = size or int(has // self._each)
        self._refs: dict[Any, Any] = {}
        self._said = False

    def hire(self) -> Any:
        """Start an actor."""
        actor = self._class.remote(self.load)
        self._refs[actor.ready.remote()] = actor
        return actor

    def give(self, worker: Any, name: str, work: Any) -> None:
        """Send work."""
        self._refs[worker.do.remote(name, work)] = worker

    def wait(self) -> Iterator[tuple[Any, Outcome]]:
        """Yield an actor that is ready, has finished a part, or is gone.

        Raises:
            UsageError: for ``give_up`` seconds no machine was there for a worker.
        """
        errors = self.ray.exceptions
        ready, _ = self.ray.wait(list(self._refs), timeout=min(PATIENCE, self.give_up))
        if ready or self._has_machines():
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen >= self.give_up:
            raise UsageError(
                f"--cluster {self.address}: no machine with {self._each} {self._kind} was there "
                f"for {self.give_up:g} s (--give-up); what is finished is kept, and the same "
                "command goes on"
            )
        if not ready and not self._said:
            print(f"nothing came from the cluster for {PATIENCE} s; still waiting", file=sys.stderr)
            self._said = True
        for ref in ready:
            worker = self._refs.pop(ref)
            try:
                yield worker, self.ray.get(ref)
            except errors.RayTaskError as error:
                cause = error.cause
                yield worker, cause if isinstance(cause, (UsageError, OSError)) else error
            except errors.RayError as error:  # it is lost, or killed for lack of memory
                self._refs = {
                    ref: actor for ref, actor in self._refs.items() if actor is not worker
                }
                with contextlib.suppress(Exception):
                    self.ray.kill(worker)  # it may be out of reach only, and hold its cores
                yield worker, Lost(str(error).strip().split("\n")[0])

    def _has_machines(self) -> bool:
        """Return whether some machine of the cluster lives that could have a worker."""
        try:
            nodes = self.ray.nodes()
        except Exception:  # of Ray, whose head is gone
            return False
        kind, each = self._kind, self._each
        return any(node["Alive"] and node["Resources"].get(kind, 0) >= each for node in nodes)

    def close(self) -> None:
        """End all actors."""
        self.ray.shutdown()
