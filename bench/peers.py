"""Our loss and gradient against TRL's, verl's and OpenRLHF's own code, on the same tensors and the same settings.

Makes an environment for each trainer under `.peers/` (some 4 GB in all, five minutes with a quick index), runs its
loss code there, and runs ours from `upweight.objective.dialects.translate` of the same settings. Then cuts one batch
into micro-batches, and prints whose number changes.

    python bench/peers.py                      # all three, as tables
    python bench/peers.py --only trl --json
    python bench/peers.py --record             # also rewrites tests/spec/peers/
    python bench/peers.py --recorded           # compares with what is written there, installs nothing
"""

import argparse
import json
from collections.abc import Iterable

from peers.cases import CASES, CUTS, SPLITS
from peers.live import TRAINERS, Comparison, NoEnvironment, compare, record, recorded


def rows(trainer: str, compared: list[Comparison]) -> list[dict[str, object]]:
    """One row per case: the first batch's losses, and the largest differences over all of its batches."""
    made = []
    for case in (case for case in CASES if case.trainer == trainer):
        runs = [run for run in compared if run.request["id"].startswith(f"{case.name} [")]
        made.append(
            {
                "trainer": trainer,
                "case": case.name,
                "theirs": runs[0].theirs.loss,
                "ours": runs[0].ours.loss,
                "in_loss": max(run.in_loss for run in runs),
                "in_gradient": max(run.in_gradient for run in runs),
                "in_advantages": max(run.in_advantages for run in runs),
                "batches": len(runs),
                "same": case.same,
                "same_value": all(run.request["same_value"] for run in runs),
                "unmatched": list(runs[0].translation.unmatched),
            }
        )
    return made


def cuts(trainer: str, compared: list[Comparison]) -> list[dict[str, object]]:
    """One row per way of averaging: the loss in each cut, theirs and ours."""
    by_id = {run.request["id"]: run for run in compared}
    made = []
    for case in (case for case in SPLITS if case.trainer == trainer):
        runs = {words: by_id[f"{case.name} in {words}"] for words in CUTS.values()}
        theirs = {words: run.theirs.loss for words, run in runs.items()}
        ours = {words: run.ours.loss for words, run in runs.items()}
        made.append({"trainer": trainer, "case": case.name, "theirs": theirs, "ours": ours})
    return made


def print_cases(made: Iterable[dict], title: str) -> None:
    """A table of cases."""
    print(f"\n{title}\n\n| trainer | case | their loss | our loss | largest difference of loss | of gradient |")
    print("|---|---|---|---|---|---|")
    for row in made:
        in_loss = f"{row['in_loss']:.0e}" + ("" if row["same_value"] or not row["same"] else " (as said)")
        losses = f"{row['theirs']:+.6f} | {row['ours']:+.6f}"
        print(f"| {row['trainer']} | {row['case']} | {losses} | {in_loss} | {row['in_gradient']:.0e} |")


def print_cuts(made: Iterable[dict]) -> None:
    """A table of cuts."""
    words = list(CUTS.values())
    heads = " | ".join([*(f"theirs {word}" for word in words), *(f"ours {word}" for word in words)])
    print(f"\nThe same batch, cut\n\n| trainer | averaging | {heads} | depends on the cut |")
    print("|" + "---|" * (3 + 2 * len(words)))
    for row in made:
        numbers = [f"{row[side][word]:+.6f}" for side in ("theirs", "ours") for word in words]
        spread = max(row["theirs"].values()) - min(row["theirs"].values())
        print(f"| {row['trainer']} | {row['case']} | {' | '.join(numbers)} | {'theirs' if spread > 1e-9 else 'no'} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TRAINERS, help="one trainer")
    parser.add_argument("--json", action="store_true", help="print one object instead of tables")
    parser.add_argument("--record", action="store_true", help="rewrite the recorded answers")
    parser.add_argument("--recorded", action="store_true", help="take the recorded answers instead of running anything")
    args = parser.parse_args()
    made: list[dict] = []
    split: list[dict] = []
    versions: dict[str, str] = {}
    for trainer in (args.only,) if args.only else TRAINERS:
        try:
            if args.record:
                record(trainer)
            version, compared = recorded(trainer) if args.recorded or args.record else compare(trainer)
        except NoEnvironment as error:
            print(f"left out, {error}")
            continue
        versions[trainer] = version
        made += rows(trainer, compared)
        split += cuts(trainer, compared)
    if args.json:
        print(json.dumps({"versions": versions, "cases": made, "cuts": split}))
        return
    print(", ".join(f"{trainer} {version}" for trainer, version in versions.items()))
    print_cases([row for row in made if row["same"]], "The same number")
    print_cases([row for row in made if not row["same"]], "Not the same, as `translate` says")
    print_cuts(split)


if __name__ == "__main__":
    main()
