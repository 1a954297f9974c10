"""Cases of scaled_losses."""

from judging.case import Case

TITLE = "One denominator for the whole step: micro-batches and ranks"
HINTS = (
    "Count the tokens with mask 1 over all ranks and all micro-batches before you look at a single loss.",
    "Gradients add up over the micro-batches of a rank, and are averaged over the ranks.",
    "Averaging divides by the number of ranks, so each micro-batch hands on ranks * sum / tokens.",
)
B01 = [[([3.0, 1.0], [1, 1]), ([0.0] * 6, [1] * 6)]]
CASES = (
    Case(
        name="two micro-batches of unequal length",
        inputs={"ranks": B01},
        right=[[0.5, 0.0]],
        why="4 over 8 tokens",
        traps={
            "that is the mean of each micro-batch: short ones count too much": [[2.0, 0.0]],
            "that is the mean of micro-batch means": [[1.0, 0.0]],
            "it was divided by the number of micro-batches as well": [[0.25, 0.0]],
        },
    ),
    Case(
        name="the same tokens, one by one",
        inputs={"ranks": [[([3.0], [1]), ([1.0], [1]), *[([0.0], [1])] * 6]]},
        right=[[0.375, 0.125, *[0.0] * 6]],
        why="the sum is 0.5 however the tokens are cut",
    ),
    Case(
        name="two ranks",
        inputs={"ranks": [[([3.0], [1])], [([1.0, 1.0, 1.0, 0.0, 0.0], [1] * 5)]]},
        right=[[1.0], [1.0]],
        why="6 tokens, and a factor of 2 that the averaging over ranks takes away: the mean of 1 and 1 is 6/6",
        traps={
            "each rank divided by its own tokens: the mean of 3 and 0.6 is 1.8, not 1": [[3.0], [0.6]],
            "the averaging over ranks halves this: the factor for the number of ranks is missing": [[0.5], [0.5]],
        },
    ),
    Case(
        name="a masked-out answer leaves the denominator",
        inputs={"ranks": [[([0.5] * 6 + [9.0] * 4, [1] * 6 + [0] * 4)]]},
        right=[[0.5]],
        why="3.0 over the 6 tokens that count",
        traps={"the masked tokens are still in the denominator": [[0.3]]},
    ),
    Case(
        name="anything may stand under the mask",
        inputs={"ranks": [[([2.0, float("nan")], [1, 0]), ([float("inf")], [0])]]},
        right=[[2.0, 0.0]],
        why="the mask selects; 0 * NaN and 0 * inf are NaN",
    ),
    Case(
        name="a rank without a token",
        inputs={"ranks": [[([7.0], [0])], [([1.0, 3.0], [1, 1])]]},
        right=[[0.0], [4.0]],
        why="2 ranks * 4 / 2 tokens; the empty rank joins with 0",
    ),
    Case(name="every token masked", inputs={"ranks": [[([5.0], [0])], [([5.0], [0])]]}, right=[[0.0], [0.0]]),
)
