"""Cases of weight_table."""

from judging.case import Case, Raises

TITLE = "The weight table: what one token of each answer gets"
A = 0.75**0.5
HINTS = (
    "Only the denominator differs: all tokens; answers times own length; answers times the budget.",
    "Answers without tokens are not counted as answers, and get 0.0.",
    "token-mean: A / total. seq-mean-token-mean: A / (answers * length). seq-mean-token-sum-norm: A / (answers *"
    " budget).",
)
CHAPTER = {"advantages": [A, -A, -A, A], "lengths": [200, 50, 2000, 400]}
CASES = (
    Case(
        name="mean within each answer, then over answers",
        inputs={**CHAPTER, "mode": "seq-mean-token-mean"},
        right=[A / 800, -A / 200, -A / 8000, A / 1600],
        why="4 answers of equal total weight: a token of the long wrong one gets a fortieth of one of the short",
        traps={"the division by the number of answers is missing": [A / 200, -A / 50, -A / 2000, A / 400]},
    ),
    Case(
        name="mean over all tokens",
        inputs={**CHAPTER, "mode": "token-mean"},
        right=[A / 2650, -A / 2650, -A / 2650, A / 2650],
        why="200 + 50 + 2000 + 400 = 2650 tokens, all alike",
    ),
    Case(
        name="sum over a fixed budget",
        inputs={**CHAPTER, "mode": "seq-mean-token-sum-norm", "budget": 2048},
        right=[A / 8192, -A / 8192, -A / 8192, A / 8192],
        why="4 answers times 2048",
        traps={
            "that is the longest answer, which changes from batch to batch": [A / 8000, -A / 8000, -A / 8000, A / 8000]
        },
    ),
    Case(
        name="an empty answer is no answer",
        inputs={"advantages": [1.0, -1.0, 0.5], "lengths": [2, 0, 4], "mode": "seq-mean-token-mean"},
        right=[0.25, 0.0, 0.0625],
        why="two answers have tokens: 1 / (2 * 2) and 0.5 / (2 * 4)",
        traps={"the empty answer was counted": [1 / 6, 0.0, 0.5 / 12]},
    ),
    Case(
        name="an empty answer under sum-norm",
        inputs={"advantages": [1.0, 3.0], "lengths": [5, 0], "mode": "seq-mean-token-sum-norm", "budget": 10},
        right=[0.1, 0.0],
        why="one answer has tokens: 1 / (1 * 10)",
    ),
    Case(
        name="nothing at all", inputs={"advantages": [1.0, -1.0], "lengths": [0, 0], "mode": "token-mean"}, right=[0, 0]
    ),
    Case(
        name="sum-norm without a budget",
        inputs={"advantages": [1.0], "lengths": [5], "mode": "seq-mean-token-sum-norm"},
        right=Raises("ValueError"),
        why="there is no budget to divide by, and the longest answer is no stand-in",
    ),
    Case(
        name="an unknown mode",
        inputs={"advantages": [1.0], "lengths": [5], "mode": "tokenmean"},
        right=Raises("ValueError"),
        why="a misspelt mode that falls through to a default trains something else",
    ),
)
