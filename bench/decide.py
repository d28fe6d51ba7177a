"""How often the decisions of `stepscope.stats.decide` are wrong, by simulation.

Settings with a known truth are measured in simulated rounds, under several models of noise, and
decided on as the commands do. A rate may exceed its nominal value by three standard errors.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from _loader_world import Loop, SimulatedBench, search

from stepscope.stats import decide

REPEATS = 2000
SEARCHES = "workers"  # what such a question asks takes ten times as long: a tenth of the repeats
FASTER_OR_SLOWER = (decide.FASTER, decide.SLOWER)


@dataclass(frozen=True)
class Noise:
    """How equal runs differ: by a spread, by drift from run to run, by slow runs and rounds."""

    name: str
    spread: float
    heavy_tails: bool = False
    drift_a_run: float = 0.0
    slow_runs: float = 0.0  # the share of runs that are up to twice as slow
    slow_rounds: float = 0.0  # the share of rounds that are a quarter slower
    cold_first: float = 0.0  # by how much the very first run is slower

    def log_rate(self, chance: random.Random, run: int) -> float:
        """Return the logarithm of a run's disturbance."""
        deviation = chance.gauss(0, 1)
        if self.heavy_tails:  # Student's t with five degrees of freedom, scaled to variance 1
            squares = sum(chance.gauss(0, 1) ** 2 for _ in range(5)) / 5
            deviation /= math.sqrt(squares * 5 / 3)
        slow = math.log(1 + chance.random()) if chance.random() < self.slow_runs else 0.0
        first = self.cold_first if run == 0 else 0.0
        return self.spread * deviation - self.drift_a_run * run - slow - first


MODELS = (
    Noise("3 %", 0.03),
    Noise("5 %", 0.05),
    Noise("10 %", 0.10),
    Noise("outliers", 0.05, slow_runs=0.1),
    Noise("heavy", 0.05, heavy_tails=True, drift_a_run=0.01, slow_rounds=0.15),
    Noise("cold", 0.05, cold_first=0.5),
)


def rounds_of(
    speeds: Sequence[float], rounds: int, noise: Noise, chance: random.Random
) -> list[list[float]]:
    """Return the rates of each setting, in rounds ordered by `decide.design`."""
    rates: list[list[float]] = [[] for _ in speeds]
    run = 0
    for order in decide.design(range(len(speeds)), rounds, chance.randrange(2**32)):
        whole_round = -math.log(1.25) if chance.random() < noise.slow_rounds else 0.0
        for setting in order:
            log = math.log(speeds[setting]) + whole_round + noise.log_rate(chance, run)
            rates[setting].append(math.exp(log))
            run += 1
    return rates


# --- Questions: each returns whether one simulated answer counts


Question = Callable[[Noise, random.Random], bool]


def family_differs(others: int, rounds: int) -> Question:
    """Whether any of several equal settings is called different from the first."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        first, *rest = rounds_of([1.0] * (others + 1), rounds, noise, chance)
        found = decide.family([partial(decide.contrast, first, each) for each in rest])
        return any(each.verdict in FASTER_OR_SLOWER for each in found)

    return ask


def leader_is_alone(settings: int, rounds: int) -> Question:
    """Whether any of several equal settings is called worse than the one that looks best."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        rates = rounds_of([1.0] * settings, rounds, noise, chance)
        return len(decide.leaders(dict(enumerate(rates)))) < settings

    return ask


def stationary_run_drifts(steps: int, resemblance: float) -> Question:
    """Whether a run whose neighbouring steps are alike, but that does not drift, is said to."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        level, times = chance.gauss(0, 0.1), []
        for step in range(steps):
            level = resemblance * level + chance.gauss(0, 0.1 * math.sqrt(1 - resemblance**2))
            times.append(math.exp(level - noise.log_rate(chance, step) - noise.drift_a_run * step))
        return decide.trend(times) in FASTER_OR_SLOWER

    return ask


def interval_misses(rounds: int) -> Question:
    """Whether the interval misses a true ratio of 1.1."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        ratio = decide.contrast(*rounds_of([1.0, 1.1], rounds, noise, chance))
        return ratio is None or ratio.low is None or not ratio.low <= 1.1 <= (ratio.high or 0)

    return ask


def sets_differ(runs: int, drift_a_run: float) -> Question:
    """Whether two equal sets, run one after the other while the machine drifts, are told apart."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        timed = [
            (math.exp(noise.log_rate(chance, run) - drift_a_run * run), float(run))
            for run in range(2 * runs)
        ]
        return decide.verdict(decide.contrast_of_sets(timed[:runs], timed[runs:])) in (
            FASTER_OR_SLOWER
        )

    return ask


def gate_answers(speed: float, looks: int, wrong: str) -> Question:
    """Whether a gate, looked at after every round from the third on, gives a wrong answer."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        baseline, other = rounds_of([1.0, speed], looks + 2, noise, chance)
        for look in range(1, looks + 1):
            found = decide.gate(baseline[: look + 2], other[: look + 2], look=look, looks=looks)
            if found.answer != "cannot tell":
                return found.answer == wrong
        return False

    return ask


def race_ends(
    speeds: Sequence[float], current: int, looks: int, is_wrong: Callable[[decide.Race[int]], bool]
) -> Question:
    """Whether a race that is looked at after every round from the third on ends in a wrong way."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        rates = dict(enumerate(rounds_of(speeds, looks + 2, noise, chance)))
        seen: dict[int, list[float]] = {setting: [] for setting in rates}
        found = None
        for number in range(looks + 2):
            for setting in found.racing if found else rates:
                seen[setting].append(rates[setting][number])
            if number >= 2:
                found = decide.race(seen, current, look=number - 1, looks=looks)
                if found is None or found.shown:
                    break
        return found is None or is_wrong(found)

    return ask


def slowdown_is_missed(pilot: int) -> Question:
    """Whether the rounds advised after a pilot miss a slowdown of 5 %."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        seen = decide.contrast(*rounds_of([1.0, 1.0], pilot, noise, chance))
        assert seen is not None
        assert seen.noise is not None
        advised = decide.rounds_for(seen.noise, pilot)
        if advised is None or advised[1] is None:
            return False  # more than are ever advised
        found = decide.contrast(*rounds_of([1.0, 0.95], advised[1], noise, chance))
        return decide.verdict(found) != decide.SLOWER

    return ask


# --- The whole search of `stepscope workers`, on simulated trainings


_SLOW_LOADER = Loop(load_s=0.03, train_s=0.015, spread=0.1)
_FREE_LOADER = Loop(load_s=0.0005, train_s=0.02, spread=0.1)
_CONTENTION = Loop(load_s=0.0015, train_s=0.02, spread=0.1, slowed_by_a_worker=0.04)
_NUMBERS = (0, 1, 2, 4)


@cache
def _rates(loop: Loop) -> dict[int, float]:
    """Return the true throughput of each number of workers."""
    return {number: loop.rate(number, random.Random(0), 20_000) for number in _NUMBERS}


def queue_misleads(workers: int, capacity: float) -> Question:
    """Whether a trial whose first step filled the queue is off by more than 3 %."""
    loop = Loop(load_s=0.02 * workers / capacity, train_s=0.02, spread=0.02)

    def ask(noise: Noise, chance: random.Random) -> bool:
        [trial] = SimulatedBench(loop, chance).have(
            [{"workers": workers, "max_steps": 2 + 2 * workers + 24}], 1
        )
        rate = trial.metrics["steady_samples_per_s"] or 0.0
        return abs(rate / (min(1.0, capacity) / 0.02) - 1) > decide.MARGIN

    return ask


def search_ends(loop: Loop, current: int, is_wrong: Callable[[float, float], bool]) -> Question:
    """Whether the throughput of the recommended number and of the current one is wrong."""

    def ask(noise: Noise, chance: random.Random) -> bool:
        whole_rounds: dict[int, float] = {}

        def disturbance(run: int, round_: int) -> float:
            is_slow = chance.random() < noise.slow_rounds
            whole = whole_rounds.setdefault(round_, -math.log(1.25) if is_slow else 0.0)
            return whole + noise.log_rate(chance, run)

        found = search(SimulatedBench(loop, chance, disturbance), current)
        rates = _rates(loop)
        return is_wrong(rates[found.recommended.workers], rates[current])

    return ask


def _wins_less_than_the_grid(loop: Loop) -> Callable[[float, float], bool]:
    """Return whether less than 90 % is gained of what the best of all numbers gains."""
    return lambda rate, before: rate - before < 0.9 * (max(_rates(loop).values()) - before)


def _loses(speeds: Sequence[float], share: float) -> Callable[[decide.Race[int]], bool]:
    return lambda race: speeds[race.pick] < (1 - share) * max(speeds)


def _is_wrongly_shown(speeds: Sequence[float]) -> Callable[[decide.Race[int]], bool]:
    loses = _loses(speeds, decide.MARGIN)
    return lambda race: race.shown and loses(race)


_LOADER_BOUND = (1.0, 1.8, 1.74, 1.8, 1.86)
_BORDER = (0.965, 0.965, 0.965, 1.0, 0.965)
_BEST_IS_SET = (1.1, 1.05, 1.0, 1.02, 1.0)


def questions() -> Iterator[tuple[str, float, Question]]:
    """Yield what is asked, the largest share of wrong answers that is promised, and how."""
    for others in (1, 2, 5, 7):
        for rounds in (3, 6):
            name = f"{others} equal to the first, {rounds} rounds: differs"
            yield name, 0.05, family_differs(others, rounds)
    for rounds in (3, 6):
        yield (
            f"best of 6 equal, {rounds} rounds: others are worse",
            0.05,
            leader_is_alone(6, rounds),
        )
    for rounds in (3, 5, 10):
        yield f"interval of {rounds} rounds misses the truth", 0.05, interval_misses(rounds)
    for runs in (3, 6, 10):
        for drift in (0.0, 0.03):
            name = f"equal sets of {runs}, drift {drift:.0%} a run: differs"
            yield name, 0.05, sets_differ(runs, drift)
    for steps, resemblance in ((100, 0.9), (300, 0.97)):
        name = f"{steps} steps without drift, {resemblance} alike: drift"
        yield name, 0.05, stationary_run_drifts(steps, resemblance)
    yield "gate, just beyond the margin: passes", 0.05, gate_answers(0.969, 4, "pass")
    yield "gate, just within the margin: fails", 0.05, gate_answers(0.971, 4, "fail")
    indifferent = [1.0] * 5
    yield (
        "race of equals: the current setting is changed",
        0.05,
        race_ends(indifferent, 3, 3, lambda race: race.pick != 3),
    )
    for name, speeds, current in (
        ("loader-bound", _LOADER_BOUND, 0),
        ("just beyond the margin", _BORDER, 0),
        ("the best is set", _BEST_IS_SET, 0),
    ):
        ends = race_ends(speeds, current, 3, _is_wrongly_shown(speeds))
        yield f"race, {name}: shown, and more than 3 % lost", 0.05, ends
    yield (
        "race, loader-bound: more than 10 % lost",
        0.05,
        race_ends(_LOADER_BOUND, 0, 3, _loses(_LOADER_BOUND, 0.1)),
    )
    for workers, capacity in ((2, 0.9), (4, 0.8), (8, 0.95)):
        name = f"{workers} workers at {capacity:.0%} of the pace: a trial is off by 3 %"
        yield name, 0.05, queue_misleads(workers, capacity)
    yield (
        f"{SEARCHES}, nothing differs: the number is changed",
        0.05,
        search_ends(_FREE_LOADER, 2, lambda rate, before: rate != before),
    )
    yield (
        f"{SEARCHES}, loader-bound: less than 90 % of the gain",
        0.05,
        search_ends(_SLOW_LOADER, 0, _wins_less_than_the_grid(_SLOW_LOADER)),
    )
    for name, loop, current in (
        ("nothing differs", _FREE_LOADER, 2),
        ("contention", _CONTENTION, 0),
    ):
        ends = search_ends(loop, current, lambda rate, before: rate < 0.97 * before)
        yield f"{SEARCHES}, {name}: more than 3 % lost", 0.01, ends
    for pilot in (3, 6):
        name = f"rounds advised after {pilot}: miss a slowdown of 5 %"
        yield name, 1 - decide.POWER, slowdown_is_missed(pilot)


def main() -> int:
    """Print the share of wrong answers by question and noise; 1 if one exceeds its promise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="questions that contain this text")
    options = parser.parse_args()
    print(f"{'wrong answers in %':58} promised " + "".join(f"{m.name:>9}" for m in MODELS))
    missed = 0
    for name, promised, ask in questions():
        if options.only not in name:
            continue
        repeats = options.repeats // 10 if name.startswith(SEARCHES) else options.repeats
        allowed = promised + 3 * math.sqrt(promised * (1 - promised) / repeats)
        shares = []
        for model in MODELS:
            chance = random.Random(f"{options.seed} {name} {model.name}")
            shares.append(sum(ask(model, chance) for _ in range(repeats)) / repeats)
        missed += sum(share > allowed for share in shares)
        figures = "".join(f"{100 * s:8.1f}{'!' if s > allowed else ' '}" for s in shares)
        print(f"{name:58} {100 * promised:8.0f} {figures}", flush=True)
    print(
        f"{missed} above the promise by more than three standard errors" if missed else "all kept"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
