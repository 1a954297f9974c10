"""Cases of masked_loss: loss and gradient, with anything under the mask."""

from collections.abc import Callable
from importlib import import_module

from judging.case import Case

NAN, INF = float("nan"), float("inf")
NEEDS_TORCH = True
TITLE = "A mask selects: NaN times 0 is NaN, in the gradient too"
HINTS = (
    "Multiplying by the mask is not enough: 0 * NaN is NaN. Nor is torch.where on the result: its backward"
    " multiplies the 0 gradient of the branch that was not taken by an infinite or NaN derivative.",
    "Replace what is under the mask in the inputs, before the first operation: torch.where(mask, logprobs, 0.0).",
    "keep = mask.bool(); take logprobs[keep], old_logprobs[keep], advantages[keep]; divide the sum by the count,"
    " and by 1 where the count is 0, so that the result still has a gradient.",
)


def call(
    function: Callable[..., object],
    logprobs: list[float],
    old_logprobs: list[float],
    advantages: list[float],
    mask: list[int],
) -> object:
    """Loss and gradient of the person's function, as plain numbers."""
    torch = import_module("torch")
    leaf = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    others = (torch.tensor(values, dtype=torch.float64) for values in (old_logprobs, advantages))
    loss = function(leaf, *others, torch.tensor(mask))
    if not (isinstance(loss, torch.Tensor) and loss.shape == ()):
        return loss
    if loss.grad_fn is None:
        return {"loss": loss.item(), "gradient": "no gradient: the result is cut off from logprobs"}
    loss.backward()
    return {"loss": loss.item(), "gradient": None if leaf.grad is None else leaf.grad.tolist()}


def at(under: float, old_under: float) -> dict[str, object]:
    """One token that counts, and one that does not."""
    return {
        "logprobs": [-0.5, under],
        "old_logprobs": [-0.5, old_under],
        "advantages": [1.0, 1.0],
        "mask": [1, 0],
    }


RIGHT = {"loss": -1.0, "gradient": [-1.0, 0.0]}
CASES = (
    Case(
        name="a first step",
        inputs={"logprobs": [-0.1, -0.2, -0.3, -0.4], "old_logprobs": [-0.1, -0.2, -0.3, -0.4],
                "advantages": [1.0] * 4, "mask": [1] * 4},
        right={"loss": -1.0, "gradient": [-0.25] * 4},
        why="every ratio is 1; each of 4 tokens pulls with a quarter",
        traps={"the ratio was detached, so nothing trains": {
            "loss": -1.0, "gradient": "no gradient: the result is cut off from logprobs"}},
    ),
    Case(
        name="zeros under the mask",
        inputs=at(0.0, 0.0),
        right=RIGHT,
        why="one token counts",
        traps={"the masked token is still in the denominator": {"loss": -0.5, "gradient": [-0.5, 0.0]}},
    ),
    Case(name="NaN under the mask", inputs=at(NAN, NAN), right=RIGHT, why="what is masked is never read"),
    Case(name="-inf under the mask", inputs=at(-INF, 0.0), right=RIGHT),
    Case(name="-inf in the old ones", inputs=at(-1.0, -INF), right=RIGHT),
    Case(name="an overflow under the mask", inputs=at(0.0, -2000.0), right=RIGHT, why="exp(2000) is inf"),
    Case(
        name="an advantage of NaN under the mask",
        inputs={"logprobs": [-0.5, -0.5], "old_logprobs": [-0.5, -0.5], "advantages": [1.0, NAN], "mask": [1, 0]},
        right=RIGHT,
    ),
    Case(
        name="two tokens, good and bad",
        inputs={"logprobs": [-0.5, -0.5], "old_logprobs": [-0.5, -0.5], "advantages": [1.0, -3.0], "mask": [1, 1]},
        right={"loss": 1.0, "gradient": [-0.5, 1.5]},
        why="-(1 - 3) / 2, and -A / 2 each",
        traps={"the sign is flipped: a loss goes down where the objective goes up": {
            "loss": -1.0, "gradient": [0.5, -1.5]}},
    ),
    Case(
        name="every token masked",
        inputs={"logprobs": [NAN, -1.0], "old_logprobs": [NAN, -1.0], "advantages": [1.0, 1.0], "mask": [0, 0]},
        right={"loss": 0.0, "gradient": [0.0, 0.0]},
        why="no token, no loss, no gradient; and no division by 0",
    ),
)  # fmt: skip
