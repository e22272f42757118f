"""A server that answers as Hugging Face's hub does, with models of folders."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Of the branch main of every model, at first.
COMMIT = "0123456789abcdef0123456789abcdef01234567"
#: How files end that the hub keeps in LFS: their ETag is their SHA-256, of others git's SHA-1.
LARGE = (".safetensors", ".bin", ".spm", ".model")


@dataclass
class Hub:
    """What it has, and what it was asked."""

    models: dict[str, Path]  # folders, by name
    gated: set[str] = field(default_factory=set)  # names of models that nobody may read
    # commits by branch, tag and commit; every model has these
    revisions: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, COMMIT: COMMIT})
    cut: str | None = None  # a file whose answer breaks off in its midst; then no more
    damaged: str | None = None  # a file whose last byte is another one when it is sent
    asked: list[tuple[str, str]] = field(default_factory=list)  # method and path
    address: str = ""


def tag_of(file: Path) -> str:
    """Return the hash that the hub knows a file by."""
    content = file.read_bytes()
    if file.name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def about_file(file: Path) -> dict[str, Any]:
    """Return what the hub says of a file."""
    size, tag = file.stat().st_size, tag_of(file)
    if not file.name.endswith(LARGE):
        return {"rfilename": file.name, "size": size, "blobId": tag}
    lfs = {"sha256": tag, "size": size, "pointerSize": 134}
    return {"rfilename": file.name, "size": size, "blobId": "0" * 40, "lfs": lfs}


@contextlib.contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Let it answer in the body, at `hub.address`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self.answer(False)

        def do_GET(self) -> None:
            self.answer(True)

        def answer(self, with_content: bool) -> None:
            hub.asked.append((self.command, self.path))
            parts = self.path.partition("?")[0].strip("/").split("/")
            is_api = parts[0] == "api"
            name = "/".join(parts[2:4] if is_api else parts[:2])
            if name not in hub.models:
                return self.send(404, b"", {"X-Error-Code": "RepoNotFound"}, with_content)
            if name in hub.gated and not is_api:
                return self.send(403, b"", {"X-Error-Code": "GatedRepo"}, with_content)
            folder = hub.models[name]
            at = parts[5:6] if is_api else parts[3:4]
            commit = hub.revisions.get(at[0] if at else "main")
            if commit is None:
                return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"}, with_content)
            if is_api:
                files = [about_file(path) for path in sorted(folder.iterdir())]
                if "blobs=" not in self.path:
                    files = [{"rfilename": file["rfilename"]} for file in files]
                about = {"id": name, "modelId": name, "sha": commit, "siblings": files}
                return self.send(200, json.dumps(about).encode(), {}, with_content)
            file = folder / parts[4]
            if not file.is_file():
                return self.send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_content)
            content = file.read_bytes()
            tag = tag_of(file)
            if hub.damaged == file.name:
                content = content[:-1] + bytes([content[-1] ^ 1])
            more = {"ETag": f'"{tag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            first = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
            status = 206 if first else 200
            if with_content and hub.cut == file.name:
                hub.cut = None
                self.send(status, content[first:], more, True, len(content) // 2)
                self.close_connection = True
                return None
            return self.send(status, content[first:], more, with_content)

        def send(
            self,
            status: int,
            content: bytes,
            headers: dict[str, str],
            with_content: bool,
            most: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            if with_content:
                self.wfile.write(content[:most])

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            server.shutdown()
