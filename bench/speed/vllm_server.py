"""vLLM's side: its server in a process of its own, asked over HTTP for token ids and their log-probabilities."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speed.machine import tree_peak, usable_cores
from speed.worker import SideFailed, Turn, environment

PATIENCE = 900.0
"""Seconds that it may take to start: it compiles."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(python: Path, folder: str, dtype: str, port: int, sequences: int) -> list[str]:
    """What starts it: vLLM's own defaults but for the log-probabilities, which are to be those of what was sampled."""
    return [
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={folder}",
        "--served-model-name=policy",
        f"--dtype={dtype}",
        f"--port={port}",
        "--host=127.0.0.1",
        "--max-model-len=512",
        f"--max-num-seqs={sequences}",
        "--logprobs-mode=processed_logprobs",
        "--generation-config=vllm",
    ]


def variables(threads: int) -> dict[str, str]:
    """Of the server's process; what is set already stays."""
    own = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GB, claimed at the start: 128 answers of SmolLM2-135M need 0.7 in float32
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, usable_cores()[:threads])),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    return own | environment(threads, own=False)


def counted(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens and log-probabilities of a reply of /v1/completions.

    Raises:
        SideFailed: it is an error's reply.

    Example:
        >>> counted({"choices": [{"token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.5, -1.0]}}]})
        {'tokens': 2, 'logprobs': 2}
    """
    if "choices" not in answer:
        raise SideFailed(f"vLLM answered {json.dumps(answer)[:500]}")
    choices = answer["choices"]
    known = [value for choice in choices for value in choice["logprobs"]["token_logprobs"] if value is not None]
    return {"tokens": sum(len(choice["token_ids"]) for choice in choices), "logprobs": len(known)}


class Server:
    """A running server."""

    def __init__(self, python: Path, setup: Mapping[str, Any], *, threads: int) -> None:
        """Start it and wait until it answers.

        Args:
            python: of vLLM's environment.
            setup: folder, dtype, answers (to a prompt), new_tokens, sequences (at once).
            threads: that it may compute with.

        Raises:
            SideFailed: it ended, or did not answer in time; the message has its last lines.
        """
        started = time.perf_counter()
        self.setup, self.port = setup, free_port()
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command(python, setup["folder"], setup["dtype"], self.port, setup["sequences"]),
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # signals then reach all of its processes at once
            env=variables(threads) | {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"},
        )
        try:
            self._wait(started + PATIENCE)
        except SideFailed:
            self.close()
            raise
        self.startup = time.perf_counter() - started
        self._send(signal.SIGSTOP)

    def _send(self, number: int) -> None:
        """A signal to the server and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _wait(self, until: float) -> None:
        while time.perf_counter() < until:
            if self._process.poll() is not None:
                self._said.seek(0)
                raise SideFailed("".join(self._said.readlines()[-30:]).strip())
            try:
                if self._http("GET", "/health", None)[0] == 200:
                    return
            except OSError:
                pass  # It does not listen yet.
            time.sleep(0.5)
        raise SideFailed(f"vLLM did not answer within {PATIENCE:.0f} s")

    def _http(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def sample(self, prompts: Sequence[Sequence[int]]) -> Turn:
        """Answers to the prompts in one request.

        Waiting for one, its processes poll and take a fifth of a core, so they are halted while it is not their turn.
        """
        request = {
            "model": "policy",
            "prompt": [list(prompt) for prompt in prompts],
            "n": self.setup["answers"],
            "max_tokens": self.setup["new_tokens"],
            "temperature": 1.0,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
        self._send(signal.SIGCONT)
        started = time.perf_counter()
        answer = self._http("POST", "/v1/completions", request)[1]
        taken = time.perf_counter() - started
        self._send(signal.SIGSTOP)
        return Turn(seconds=taken, said=counted(json.loads(answer)))

    def peak(self) -> int | None:
        """Bytes, so far, of the server and of those it started."""
        return tree_peak(self._process.pid)

    def close(self) -> None:
        """End it."""
        self._send(signal.SIGCONT)
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        self._send(signal.SIGKILL)  # what it left behind, or all of it
        self._process.wait()
        self._said.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
