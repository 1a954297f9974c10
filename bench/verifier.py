"""How many plain integer answers the maths verifier judges in a second, and how long the shipped cases take.

python bench/verifier.py
"""

import statistics
import time

from upweight.rewards.audit import read_cases
from upweight.rewards.verify import verify

ROUNDS = 10
ANSWERS = 5_000


def main() -> None:
    """Ten rounds of each, after one that is not counted."""
    marked = {"####": "The sum is {0}. #### {0}", "box": "<think>Let me see.</think> So it is \\boxed{{{0}}}."}
    for name, form in marked.items():
        texts = [(form.format(i), str(i)) for i in range(ANSWERS)]
        rates = []
        for _ in range(ROUNDS + 1):
            start = time.perf_counter()
            right = sum(verify(text, gold).value == 1.0 for text, gold in texts)
            rates.append(ANSWERS / (time.perf_counter() - start))
            assert right == ANSWERS
        rates = rates[1:]
        print(
            f"plain integers, {name}: {statistics.median(rates):,.0f} a second [{min(rates):,.0f}, {max(rates):,.0f}]"
        )
    cases = read_cases()
    verify("\\boxed{\\sin 50^\\circ}", "\\cos 40^\\circ")  # starts the worker
    times = []
    for case in cases:
        start = time.perf_counter()
        verify(case.answer_text, case.gold)
        times.append(time.perf_counter() - start)
    print(f"{len(cases)} shipped cases: median {1e3 * statistics.median(times):.2f} ms, longest {max(times):.2f} s")


if __name__ == "__main__":
    main()
