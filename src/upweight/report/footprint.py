"""What the memory of a training process goes to, counted from shapes. Imports no torch.

A step has three phases whose memory differs - sampling, a training pass, the optimiser's update - and the most that any
of them needs is what has to fit. A pass has two ends: at its start all activations are there, at its end all gradients.
Where weights are divided, the start of the run is a phase too.

Shapes: N tokens of a pass, M of them scored; E hidden size, H query heads, K key heads, D head size, F feed-forward, L
layers, V words; P parameters.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from upweight.report.shapes import COMPACT, Shape

BYTES = {"float32": 4, "bfloat16": 2}
"""Of a number."""

MB, GB = 1 << 20, 1 << 30

CPU_BASE = 390 * MB
"""Resident memory of a process that has imported torch and transformers (345 MB) and has taken a step, without the
model: measured on Linux."""

TOKENIZER = 800
"""Bytes for each word of a fast tokenizer: measured with 49,152 words."""

KEPT_ONE_PASS, KEPT_SEVERAL = 0.25, 0.4
"""Memory that glibc cannot give out again after it was freed in pieces, as a share of the activations of a pass that
keeps all of them: where an update has one pass or layers are recomputed, and where it has several; on Linux."""

PIECES = 32 * MB
"""Size from which glibc takes a tensor from the system, and gives it back."""

TOGETHER = 96
"""Places of a prompt with all of its answers up to which the compact decoder attends to them in one masked softmax."""

GPU_BASE = 1 * GB
"""Of a GPU: the CUDA context and the libraries' work space. Assumed, not measured."""

GPU_SLACK = 0.05
"""Share of everything else that the GPU's allocator holds between blocks. Assumed, not measured."""

BLOCK = 4 << 22
"""Bytes of a block of logits in float32."""

BLOCK_TOKENS = 1024
"""Tokens of such a block."""

MEMORY_TOKENS = 32768
"""Tokens that the sampler remembers at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What decides the memory of a process."""

    shape: Shape
    """The model's."""

    device: Literal["cpu", "gpu"] = "gpu"
    """What it is trained on."""

    processes: int = 1
    """How many share a step, one to a GPU."""

    dtype: str = "float32"
    """Of weights and passes."""

    shard: str = "none"
    """full: weights, gradients and moments are divided over the processes."""

    checkpointing: bool = False
    """Whether a layer's activations are made again in the backward pass."""

    float32_head: bool = False
    """Whether the product with the head is made in float32."""

    has_reference: bool = True
    """Whether a second model is held for the KL."""

    prompts: int = 64
    """Of a step, over all processes."""

    group_size: int = 8
    """Answers to each."""

    prompt_tokens: int = 256
    """Of a prompt."""

    new_tokens: int = 512
    """Of an answer."""

    micro_batch_tokens: int = 4096
    """Of a pass."""

    updates: int = 1
    """Optimiser updates of a step."""

    @property
    def compact(self) -> bool:
        """Whether the compact decoder is used: prompts once, nothing padded, no logits as a whole."""
        return self.device == "cpu" and self.shape.family in COMPACT and self.parts == 1

    @property
    def number(self) -> int:
        """Bytes of a number of the model."""
        return BYTES[self.dtype]

    @property
    def parts(self) -> int:
        """How many processes hold one copy of the model between them."""
        return self.processes if self.shard == "full" else 1

    @property
    def own_prompts(self) -> int:
        """Prompts of a step that a process samples."""
        return -(-self.prompts // self.processes)

    @property
    def step_tokens(self) -> int:
        """Tokens of a process's share of a step, as its passes count them."""
        if self.compact:
            return self.own_prompts * self.group_tokens
        return self.own_prompts * self.group_size * (self.prompt_tokens + self.new_tokens)

    @property
    def update_groups(self) -> int:
        """Groups of a process's share of the largest update."""
        return -(-self.own_prompts // min(self.updates, self.own_prompts))

    @property
    def group_tokens(self) -> int:
        """Of a prompt with all of its answers."""
        return self.prompt_tokens + self.group_size * self.new_tokens

    @property
    def pass_answers(self) -> int:
        """Answers of the largest pass of the compact decoder, as `cut` makes it: whole groups, or part of one."""
        if self.group_tokens <= self.micro_batch_tokens:
            passes = -(-self.update_groups // (self.micro_batch_tokens // self.group_tokens))
            return -(-self.update_groups // passes) * self.group_size
        fit = max(1, (self.micro_batch_tokens - self.prompt_tokens) // self.new_tokens)
        return -(-self.group_size // -(-self.group_size // fit))

    @property
    def pass_tokens(self) -> tuple[int, int]:
        """N and M of the largest pass: never less than one sequence, never more than an update has."""
        if self.compact:
            answers = self.pass_answers
            prompts = -(-answers // self.group_size)
            return prompts * self.prompt_tokens + answers * self.new_tokens, answers * self.new_tokens
        whole = self.prompt_tokens + self.new_tokens
        update = max(whole, self.step_tokens // self.updates)
        answers = max(1, min(max(self.micro_batch_tokens, whole), update) // whole)
        return answers * whole, answers * self.new_tokens

    @property
    def passes(self) -> int:
        """Of an update."""
        if self.compact and self.pass_answers < self.group_size:
            return self.update_groups * -(-self.group_size // self.pass_answers)
        if self.compact:
            return -(-self.update_groups // (self.pass_answers // self.group_size))
        return max(1, -(-(self.step_tokens // self.updates) // max(1, self.pass_tokens[0])))


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One thing that takes memory."""

    name: str
    """What it is."""

    size: int
    """Bytes."""

    why: str
    """How the number comes about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One phase of a step at its fullest."""

    name: str
    """What is being done."""

    parts: tuple[Part, ...]
    """What is there beside what is always there."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Footprint:
    """The memory of one process, or of its GPU."""

    always: tuple[Part, ...]
    """What is there all the time."""

    phases: tuple[Phase, ...]
    """What comes and goes."""

    slack: float
    """Share of it that the allocator adds."""

    @property
    def fullest(self) -> Phase:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.size)

    def total(self, phase: Phase) -> int:
        """Bytes of everything while in a phase."""
        base, held = self.always[0].size, sum(part.size for part in self.always[1:])
        return base + round((held + phase.size) * (1 + self.slack))

    @property
    def peak(self) -> int:
        """Bytes: what has to fit."""
        return self.total(self.fullest)


def footprint(setup: Setup) -> Footprint:
    """Count the memory of one process.

    Args:
        setup: the model and the run.

    Returns:
        What is always there, and what each phase of a step adds.

    Example:
        >>> from upweight.report.shapes import SHAPES
        >>> found = footprint(Setup(shape=SHAPES["qwen2.5-7b"], dtype="bfloat16", has_reference=False))
        >>> {part.name: f"{part.size / GB:.1f} GB" for part in found.always[1:]}
        {'weights': '14.2 GB', 'float32 masters': '28.4 GB', 'moments': '56.7 GB'}
    """
    always = tuple(_always(setup))
    phases = (
        Phase(name="the start", parts=tuple(_start(setup, sum(part.size for part in always[1:])))),
        Phase(name="sampling", parts=tuple(_sampling(setup))),
        Phase(name="a pass at its start", parts=tuple(_pass_start(setup))),
        Phase(name="a pass at its end", parts=tuple(_pass_end(setup))),
        Phase(name="the update", parts=tuple(_update(setup))),
    )
    return Footprint(
        always=always,
        phases=tuple(
            dataclasses.replace(phase, parts=tuple(part for part in phase.parts if part.size))
            for phase in phases
            if phase.name != "the start" or phase.size
        ),
        slack=GPU_SLACK if setup.device == "gpu" else 0.0,
    )


def _always(s: Setup) -> Iterator[Part]:
    count, divided = s.shape.parameters, f" / {s.parts} processes" if s.parts > 1 else ""
    shown = f"{count / 1e6:,.1f} million parameters"
    if s.device == "cpu":
        size = CPU_BASE + TOKENIZER * s.shape.vocabulary
        yield Part(name="framework", size=size, why="torch, transformers and the tokenizer, as measured on Linux")
    else:
        yield Part(name="framework", size=GPU_BASE, why="the CUDA context and work space: assumed")
    yield Part(name="weights", size=s.number * count // s.parts, why=f"{s.number} bytes x {shown}{divided}")
    if s.number < 4:
        why = f"4 bytes x parameters{divided}: an update is smaller than bfloat16's spacing"
        yield Part(name="float32 masters", size=4 * count // s.parts, why=why)
    yield Part(name="moments", size=8 * count // s.parts, why=f"8 bytes x parameters{divided}: AdamW's two, in float32")
    if s.parts > 1:
        why = f"{s.number} bytes x parameters: sampling needs every layer whole"
        yield Part(name="whole copy that samples", size=s.number * count, why=why)
    if s.has_reference:
        why = f"{s.number} bytes x parameters{divided}: kl_coef > 0"
        yield Part(name="reference model", size=s.number * count // s.parts, why=why)
    if s.device == "cpu":
        share = KEPT_SEVERAL if s.passes > 1 and not s.checkpointing else KEPT_ONE_PASS
        why = f"freed in pieces that glibc cannot use again: {share:.0%} of a pass's smaller tensors, as measured"
        yield Part(name="kept by the allocator", size=round(share * _pieces(s)), why=why)


def _pieces(s: Setup) -> int:
    """Bytes of a pass's activations in tensors that glibc holds on to, whether kept or made again."""
    count, _ = s.pass_tokens
    kinds = ((4, s.shape.hidden), (4, s.shape.queries), (4, s.shape.keys), (3, s.shape.feed_forward))
    sizes = ((times, count * s.number * features) for times, features in kinds)
    return s.shape.layers * sum(times * size for times, size in sizes if size < PIECES)


def _gradients(s: Setup) -> Part:
    divided = f" / {s.parts} processes" if s.parts > 1 else ""
    why = f"4 bytes x parameters{divided}: their sum over passes, in float32"
    return Part(name="gradients", size=4 * s.shape.parameters // s.parts, why=why)


def _start(s: Setup, held: int) -> Iterator[Part]:
    """Before the first step, when masters and moments are not there yet: models are copied whole, then divided."""
    if s.parts == 1:
        return
    copies = 3 if s.has_reference else 2
    size = max(0, copies * s.number * s.shape.parameters - held)
    why = f"{copies} x {s.number} bytes x parameters, beyond what is there later: they are copied, then divided"
    yield Part(name="whole models", size=size, why=why)


def _sampling(s: Setup) -> Iterator[Part]:
    shape, b = s.shape, s.number
    if s.device == "cpu" and shape.family in COMPACT:
        head = 4 if s.float32_head else b
        why = "the layers and the head once more, laid out for products of few rows"
        yield Part(name="sampling weights", size=b * shape.layers * shape.layer + head * shape.table, why=why)
    prompts, rows = _at_once(s)
    copies = prompts if s.compact else rows
    tokens = copies * s.prompt_tokens + rows * s.new_tokens
    per_token = 2 * shape.layers * shape.keys * b
    yield Part(
        name="KV cache",
        size=tokens * per_token,
        why=f"2 x {shape.layers} layers x {shape.keys} x {b} bytes x {tokens:,} tokens "
        f"({rows} answers at once, {'a prompt once' if s.compact else 'each with its prompt'})",
    )
    wide = 2 * shape.hidden + max(3 * shape.feed_forward, 5 * shape.queries + 4 * shape.keys)
    admitted = prompts * s.prompt_tokens * wide * b
    logit = 4 if s.float32_head else b
    drawn = 2 * rows * shape.vocabulary * logit + 3 * min(BLOCK, 4 * rows * shape.vocabulary)
    yield Part(
        name="a step of sampling",
        size=max(admitted, drawn),
        why=f"a layer's results for {prompts} prompts, or {rows} x {shape.vocabulary:,} logits twice",
    )


def _at_once(s: Setup) -> tuple[int, int]:
    """Prompts and answers that are being sampled at once, as `LocalEngine` plans them."""
    longest, budget = s.prompt_tokens, s.new_tokens
    room = MEMORY_TOKENS - longest if s.compact else MEMORY_TOKENS
    each = budget if s.compact else longest + budget
    width = min(s.group_size, max(1, room // each))
    orders = s.own_prompts * -(-s.group_size // width)
    fit = MEMORY_TOKENS // (longest + width * budget) if s.compact else room // (width * each)
    prompts = min(orders, max(1, fit))
    return prompts, prompts * width


def layer_bytes(s: Setup) -> int:
    """Bytes that one layer keeps for the backward pass, per token.

    Of the compact decoder: inputs of the two norms (2 E), what attention saves (2 H D + 2 K D), the two factors of the
    gate (2 F), and float32 log-sum-exps; over short rows queries, keys and values repeated to H heads, the output, and
    the softmax. Of transformers' own forward: keys and values repeated to H heads, four feed-forward results, three
    copies in each norm, and the mask.
    """
    e, q, k, f, b = s.shape.hidden, s.shape.queries, s.shape.keys, s.shape.feed_forward, s.number
    if s.compact:
        norms = b * (q + k) + 4 * (s.shape.heads + s.shape.key_heads) if s.shape.has_head_norms else 0
        places = s.prompt_tokens + s.group_size * max(1, s.new_tokens - 1)
        attention = b * (2 * q + 2 * k) + 4 * s.shape.heads
        if places <= TOGETHER and b == 4:
            attention = b * (4 * q + s.shape.heads * places)
        return b * (2 * e + 2 * f) + attention + norms
    head_norms = (4 + b) * (q + k) + 4 * (s.shape.heads + s.shape.key_heads) if s.shape.has_head_norms else 0
    mask = b * (s.prompt_tokens + s.new_tokens - 1)
    # In float32 the norm's widened input is its input.
    return 2 * e * (4 + 2 * b) + 4 * q * b + 4 * f * b + mask + 8 + 4 * s.shape.heads + head_norms


def activations(s: Setup) -> Part:
    """What the layers keep for the backward pass of the largest pass."""
    count, _ = s.pass_tokens
    layer = layer_bytes(s)
    if not s.checkpointing:
        size = count * (s.shape.layers * layer + 2 * s.shape.hidden * s.number)
        return Part(
            name="activations",
            size=size,
            why=f"{s.shape.layers} layers x {layer:,} bytes x {count:,} tokens of a pass",
        )
    size = count * (s.shape.layers * s.shape.hidden * s.number + layer)
    return Part(
        name="activations",
        size=size,
        why=f"({s.shape.layers} layers' inputs x {s.shape.hidden * s.number:,} bytes + one layer x {layer:,} bytes) "
        f"x {count:,} tokens of a pass",
    )


def _pass_start(s: Setup) -> Iterator[Part]:
    """The forward is done, and the backward has begun."""
    if s.passes > 1:
        yield _gradients(s)
    yield activations(s)
    yield from _whole_layers(s)
    yield _head(s)


def _head(s: Setup) -> Part:
    """Logits, and the backward's first results."""
    shape, b, (count, scored) = s.shape, s.number, s.pass_tokens
    if not s.compact:
        logit = 4 if s.float32_head else b
        widened = shape.table * (4 + b) if s.float32_head and b < 4 else shape.table * b
        return Part(
            name="logits",
            size=3 * logit * scored * shape.vocabulary + 3 * BLOCK + widened,
            why=f"{scored:,} x {shape.vocabulary:,} x {logit} bytes: themselves, their gradient, and either without "
            "padding; and the head's gradient",
        )
    rows = min(scored, max(BLOCK_TOKENS, BLOCK // 4 // shape.vocabulary))
    block = min(BLOCK, 4 * rows * shape.vocabulary)
    hidden = scored * shape.hidden * (b + 4)
    forward = 3 * block
    total = 0 if s.passes > 1 else 4 * shape.table  # is there already where an earlier pass has made it
    backward = block + (0 if b == 4 else block // 2) + hidden + total
    below = count * b * (2 * shape.hidden + 3 * shape.feed_forward) + total
    return Part(
        name="head",
        size=max(forward, backward, below),
        why=f"blocks of logits of {block / MB:.0f} MB, the gradient of {scored:,} hidden states, or a layer's results"
        f"{f'; the sum of {shape.vocabulary:,} x {shape.hidden:,} gradients' if total else ''}; the logits never exist "
        "as a whole",
    )


def _whole_layers(s: Setup) -> Iterable[Part]:
    """What FSDP gathers while it computes."""
    if s.parts == 1:
        return
    tables = s.shape.table * (1 if s.shape.tied else 2)
    yield Part(
        name="gathered layers",
        size=s.number * (tables + 3 * s.shape.layer),
        why="embedding, head, the layer at work with its gradient, and the next",
    )


def _pass_end(s: Setup) -> Iterator[Part]:
    """The backward is done but for the embedding."""
    b, (count, _) = s.number, s.pass_tokens
    yield _gradients(s)
    if s.number < 4 and s.parts > 1:
        why = f"{b} bytes x parameters / {s.parts} processes: of this pass, in {s.dtype}"
        yield Part(name="gradients of the pass", size=b * s.shape.parameters // s.parts, why=why)
    yield from _whole_layers(s)
    twice = s.shape.tied and not s.compact  # the compact decoder's head has added its own to the sum
    yield Part(
        name="gradient of the embedding",
        size=b * s.shape.table * (2 if twice else 1) + count * layer_bytes(s),
        why=f"as large as the embedding{', twice since it is the head too' if twice else ''}; and the first layer's "
        "activations",
    )


def _update(s: Setup) -> Iterator[Part]:
    """AdamW's fused kernel needs nothing of its own, and the sums over processes are made in place."""
    yield _gradients(s)
