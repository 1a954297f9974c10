"""The world and its truth: every answer, its probability, and exact gradients. Nothing here is estimated.

Shapes: P prompts, A answers, T tokens of budget, S prefixes, V vocabulary. The policy is a table of free logits
[P, S, V]: one softmax for each prompt and prefix.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from upweight.lab.small_world.parameters import SmallWorldParameters

END = 0
"""The token that ends an answer. It is one of the vocabulary, is trained on and counts in an answer's length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSet:
    """Every answer that can be given, the same for all prompts."""

    prefix: Tensor
    """[A, T] number of the prefix that each token follows; 0 beyond the end."""

    token: Tensor
    """[A, T] token ids; 0 beyond the end."""

    mask: Tensor
    """[A, T] bool: the tokens of each answer."""

    prefixes: int
    """S: runs of fewer than T tokens without an end token."""

    vocabulary: int
    """V."""

    @property
    def length(self) -> Tensor:
        """[A] tokens of each answer."""
        return self.mask.sum(1)

    @property
    def reward(self) -> Tensor:
        """[A] float64, 1 for a right answer: the ids of its tokens add up to an odd number."""
        return (self.token.sum(1) % 2).double()


def enumerate_answers(vocabulary: int, length: int) -> AnswerSet:
    """List every answer: runs of tokens up to the first end token, or up to the budget.

    Args:
        vocabulary: V, the end token included.
        length: T, the budget.

    Example:
        >>> answers = enumerate_answers(2, 2)
        >>> answers.token.tolist(), answers.length.tolist(), answers.reward.tolist()
        ([[0, 0], [1, 0], [1, 1]], [1, 2, 2], [0.0, 1.0, 0.0])
    """
    numbers: dict[tuple[int, ...], int] = {(): 0}
    answers: list[tuple[int, ...]] = []
    frontier: list[tuple[int, ...]] = [()]
    for tokens in range(1, length + 1):
        grown = [(*prefix, token) for prefix in frontier for token in range(vocabulary)]
        answers += [run for run in grown if run[-1] == END or tokens == length]
        frontier = [run for run in grown if run[-1] != END] if tokens < length else []
        numbers |= {run: len(numbers) + place for place, run in enumerate(frontier)}
    prefix, token, mask = (torch.zeros(len(answers), length, dtype=torch.long) for _ in range(3))
    for place, answer in enumerate(answers):
        for t, chosen in enumerate(answer):
            prefix[place, t], token[place, t], mask[place, t] = numbers[answer[:t]], chosen, 1
    return AnswerSet(prefix=prefix, token=token, mask=mask.bool(), prefixes=len(numbers), vocabulary=vocabulary)


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Prompts, every answer, and a policy; the flat tokens are those of all answers to all prompts, in order."""

    answers: AnswerSet
    """The same for all prompts."""

    logits: Tensor
    """[P, S, V] float64: the policy."""

    @property
    def prompts(self) -> int:
        """P."""
        return self.logits.shape[0]

    @property
    def outcomes(self) -> tuple[int, int]:
        """P and A: an outcome is an answer to a prompt."""
        return self.prompts, self.answers.token.shape[0]

    @property
    def slot(self) -> Tensor:
        """[N] place of each flat token in the flattened table of logits."""
        answers = self.answers
        within = (answers.prefix * answers.vocabulary + answers.token)[answers.mask]
        start = torch.arange(self.prompts)[:, None] * (answers.prefixes * answers.vocabulary)
        return (start + within).flatten()

    @property
    def seq_id(self) -> Tensor:
        """[N] outcome of each flat token."""
        prompts, answers = self.outcomes
        return torch.arange(prompts * answers).repeat_interleave(self.answers.length.repeat(prompts))

    @property
    def reward(self) -> Tensor:
        """[P, A] reward of each outcome."""
        return self.answers.reward.expand(self.outcomes)

    def logprobs(self, logits: Tensor | None = None) -> Tensor:
        """[N] log-probability of each flat token; under the policy where no logits are given."""
        table = self.logits if logits is None else logits
        return table.log_softmax(-1).flatten()[self.slot]

    def probabilities(self, logits: Tensor | None = None) -> Tensor:
        """[P, A] probability of each answer to its prompt; differentiable."""
        prompts, answers = self.outcomes
        total = torch.zeros(prompts * answers, dtype=torch.float64)
        return total.index_add(0, self.seq_id, self.logprobs(logits)).exp().view(prompts, answers)

    def visits(self, logits: Tensor | None = None) -> Tensor:
        """[P, S] probability that an answer reaches each prefix."""
        reached = torch.zeros(self.prompts, self.answers.prefixes, dtype=torch.float64)
        per_token = self.probabilities(logits).detach()[:, :, None].expand(-1, -1, self.answers.token.shape[1])
        where = self.answers.prefix[self.answers.mask].expand(self.prompts, -1)
        return reached.scatter_add(1, where, per_token[:, self.answers.mask])


def expected(world: World, value: Tensor, logits: Tensor | None = None) -> Tensor:
    """sum_o pi(o) value(o) per prompt, differentiable in the logits.

    Args:
        world: the world.
        value: [A] or [P, A] value of each outcome.
        logits: [P, S, V] another policy; the world's where None.

    Returns:
        [P].
    """
    return (world.probabilities(logits) * value).sum(1)


def gradient_of_expected(world: World, value: Tensor, logits: Tensor | None = None) -> Tensor:
    """[P, S, V] exact gradient of the mean over prompts of sum_o pi(o) value(o): differentiated as the sum it is.

    With the rewards as values this is the policy gradient.

    Args:
        world: the world.
        value: [A] or [P, A] value of each outcome, held fixed.
        logits: [P, S, V] where to take it; the world's policy where None.
    """
    table = (world.logits if logits is None else logits).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(expected(world, value, table).mean(), table)
    return gradient


def kl_of_answers(world: World, ref: Tensor, logits: Tensor | None = None) -> Tensor:
    """[P] KL(pi || pi_ref) between whole answers, summed over all of them; differentiable in the logits.

    Args:
        world: the world.
        ref: [P, S, V] logits of the reference.
        logits: [P, S, V] the policy; the world's where None.
    """
    policy = world.probabilities(logits)
    return (policy * (policy.log() - world.probabilities(ref).log())).sum(1)


def kl_of_positions(world: World, ref: Tensor, logits: Tensor, *, forward: bool = False) -> Tensor:
    """[P] sum over prefixes of P(prefix) KL(pi(.|prefix) || pi_ref(.|prefix)), with P(prefix) held fixed.

    Its value is the KL of whole answers (the chain rule of the KL); its gradient is not, because an answer's early
    tokens also decide which prefixes are reached.

    Args:
        world: the world.
        ref: [P, S, V] logits of the reference.
        logits: [P, S, V] the policy.
        forward: KL(pi_ref || pi) at each prefix instead.
    """
    policy, reference = logits.log_softmax(-1), ref.log_softmax(-1)
    left, right = (reference, policy) if forward else (policy, reference)
    return (world.visits(logits) * (left.exp() * (left - right)).sum(-1)).sum(1)


def make_world(parameters: SmallWorldParameters, generator: torch.Generator) -> World:
    """A policy with normal logits, tilted so that each prompt is answered right with its probability, exactly.

    The harder of the prompts also get the longer answers: their end token is less likely. Tilting multiplies the
    probabilities of right answers and of wrong ones by a number each; a table of conditional probabilities gives
    any distribution over answers, this one too.

    Args:
        parameters: vocabulary, length, difficulties, spread.
        generator: where the logits are drawn from.

    Example:
        >>> world = make_world(SmallWorldParameters(difficulties=(0.2,)), torch.Generator().manual_seed(0))
        >>> round(expected(world, world.reward).item(), 12)
        0.2
    """
    answers = enumerate_answers(parameters.vocabulary, parameters.length)
    share = torch.tensor(parameters.difficulties, dtype=torch.float64)
    shape = (len(share), answers.prefixes, answers.vocabulary)
    logits = parameters.spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    logits[:, :, END] += (2 * share - 1)[:, None]
    world = World(answers=answers, logits=logits)
    probabilities, reward = world.probabilities(), world.reward
    right = (probabilities * reward).sum(1, keepdim=True)
    tilt = torch.where(reward > 0, share[:, None] / right, (1 - share)[:, None] / (1 - right))
    return World(answers=answers, logits=_table(answers, probabilities * tilt))


def _table(answers: AnswerSet, probabilities: Tensor) -> Tensor:
    """[P, S, V] log of the conditional probabilities that give whole answers these probabilities."""
    flow = torch.zeros(len(probabilities), answers.prefixes * answers.vocabulary, dtype=torch.float64)
    where = (answers.prefix * answers.vocabulary + answers.token)[answers.mask].expand(len(probabilities), -1)
    per_token = probabilities[:, :, None].expand(-1, -1, answers.token.shape[1])[:, answers.mask]
    flow = flow.scatter_add(1, where, per_token).view(len(probabilities), answers.prefixes, answers.vocabulary)
    return (flow / flow.sum(-1, keepdim=True)).log()
