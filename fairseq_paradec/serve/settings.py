"""What ``paradec serve`` is told, once for all its processes."""

import dataclasses
import json
from typing import Any

from ..config import TEXT_RULES


@dataclasses.dataclass(frozen=True)
class ServerSettings:
    """The settings of a server; the command's flags have the same names and defaults.

    Attributes:
        models: model folders.
        host: the address to listen at.
        port: of it; 0: any free one.
        workers: processes, each with its own models and batches.
        threads: decoding threads of a process, which share its weights.
        cores: CPU threads of a decoding thread; None: all cores, shared among the threads.
        batch_size: sentences decoded together, at most.
        max_tokens: source tokens decoded together, at most.
        decoding: of requests that name none; None: as ``paradec translate``.
        speed_profile: file in which auto_fast keeps what it measured.
        no_repeat_ngram_size: of every search; None: as the model's folder has it.
        repetition_penalty: of every search; None: as the model's folder has it.
        suppress_sequences: of every search; None: as the model's folder has it.
        max_beam: the largest beam that a request may ask for.
        max_characters: of the texts of a request.
        max_body: bytes of a request's body.
        max_waiting: sentences that wait; a request that would bring more is refused.
        timeout: seconds of a request, from its first byte to the answer's last.
        idle: seconds that a connection may be open without a request under way.
        drain: seconds in which requests are finished after SIGTERM.
        api_keys: a request needs one of these; none: no request does.
        origins: other origins whose pages may ask; ``*``: all.
        log_texts: texts are logged, too.
    """

    models: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 1
    cores: int | None = None
    batch_size: int = 32
    max_tokens: int = 4000
    decoding: str | None = None
    speed_profile: str | None = None
    no_repeat_ngram_size: int | None = None
    repetition_penalty: float | None = None
    suppress_sequences: str | None = None
    max_beam: int = 8
    max_characters: int = 20_000
    max_body: int = 1_000_000
    max_waiting: int = 2000
    timeout: float = 60.0
    idle: float = 20.0
    drain: float = 30.0
    api_keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    log_texts: bool = False

    @property
    def rules(self) -> dict[str, Any]:
        """The rules of every search that are given, by the options' names."""
        given = {name: getattr(self, name) for name in TEXT_RULES}
        return {name: value for name, value in given.items() if value is not None}

    def as_json(self) -> str:
        """Return the settings as text, for other processes."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ServerSettings":
        """Read what ``as_json`` wrote."""
        told: dict[str, Any] = json.loads(text)
        lists = {name: tuple(told[name]) for name in ("models", "api_keys", "origins")}
        return cls(**told | lists)
