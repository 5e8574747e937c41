"""The plan of what stays on the card, against all choices on small chains. No torch."""

import itertools
import random

from gapless._stream.order import Expected, Kinds, Record, Step
from gapless._stream.plan import Chain, Link, Use, bound, choose, simulate


def chain_of(sizes, seconds, uses=None):
    return Chain(sizes, seconds, uses or [Use(item, item, item) for item in range(len(sizes))])


def random_chain(chance):
    """Up to nine weights, some used several times, some during several steps."""
    count = chance.randint(1, 9)
    sizes = [chance.choice((1, 2, 2, 3, 8)) * 10 for _ in range(count)]
    steps = chance.randint(count, count + 4)
    seconds = [chance.choice((0.0, 0.5, 1.0, 1.0, 4.0)) for _ in range(steps)]
    firsts = sorted(chance.randrange(steps) for _ in range(count))
    uses = [Use(item, first, min(steps - 1, first + chance.choice((0, 0, 0, 1, 3)))) for item, first in enumerate(firsts)]
    if chance.random() < 0.3:
        again = uses[0]._replace(first=steps - 1, last=steps - 1)
        if uses[0].last < steps - 1:
            uses.append(again)
    return chain_of(sizes, seconds, uses)


def best_of_all(chain, budget, link):
    items = range(len(chain.sizes))
    found = [simulate(chain, kept, budget, link) for count in range(len(items) + 1) for kept in itertools.combinations(items, count)]
    times = [one.seconds for one in found if one is not None]
    return min(times) if times else None


def test_a_choice_is_near_the_best_of_all_and_keeps_to_the_budget():
    chance = random.Random(7)
    exact, far = 0, []
    for _ in range(400):
        chain, link = random_chain(chance), Link(chance.choice((5.0, 10.0, 20.0, 80.0)), chance.choice((0.0, 0.1)))
        budget = chance.randint(10, sum(chain.sizes) + 10)
        best, plan = best_of_all(chain, budget, link), choose(chain, budget, link)
        if best is None:
            assert plan.expected is None
            continue
        assert plan.expected is not None, (chain, budget)
        assert plan.expected == simulate(chain, plan.resident, budget, link)
        assert plan.expected.peak <= budget
        assert plan.expected.seconds >= bound(chain, budget, link) - 1e-9
        exact += plan.expected.seconds <= best * (1 + 1e-9)
        far.append(plan.expected.seconds / best if best else 1)
    assert exact >= 0.95 * len(far) and max(far) < 1.18 and sum(times > 1.05 for times in far) <= 5, (exact, sorted(far)[-10:])


def test_simulated_figures_by_hand():
    # Three weights of 10 bytes, 1 second each over the link; room for two at a time.
    chain, link = chain_of([10, 10, 10], [1.0, 1.0, 1.0]), Link(10.0)
    alone = simulate(chain, (), 20, link)
    # The first arrives at 1, the second at 2; the third may start when the first is done, at 2, and arrives at 3.
    assert (alone.seconds, alone.waited, alone.moved, alone.peak) == (4.0, 1.0, 30, 20)
    kept = simulate(chain, {0}, 20, link)
    # The second arrives at 1 and is done at 2; only then is there room for the third.
    assert (kept.seconds, kept.waited, kept.moved, kept.peak) == (4.0, 1.0, 20, 20)
    assert simulate(chain, {0, 1, 2}, 20, link) is None
    assert simulate(chain, {0, 1}, 20, link) is None
    assert simulate(chain, {0, 1, 2}, 30, link).seconds == 3.0
    # A step that needs two at once.
    both = chain_of([10, 10], [1.0, 1.0], [Use(0, 0, 1), Use(1, 1, 1)])
    assert simulate(both, (), 10, link) is None and simulate(both, (), 20, link).seconds == 3.0


def test_equal_blocks_that_stay_are_spread_evenly_where_work_hides_the_link():
    # The link needs 1.5 of a block's time: with half of them resident it is hidden, but not behind a run.
    blocks = 32
    chain, link = chain_of([100] * blocks, [1.0] * blocks), Link(100 / 1.5)
    plan = choose(chain, 16 * 100 + 300, link)
    assert plan.expected.seconds <= 1.03 * bound(chain, 1900, link)
    streams = [block for block in range(blocks) if block not in plan.resident]
    assert max(b - a for a, b in zip(streams, streams[1:])) <= 5


def test_a_language_model_is_near_its_bound():
    # Seven weights a block, 32 blocks, a large last layer; from work that takes a part of the link's time to twice it.
    sizes = [32, 8, 8, 32, 112, 112, 112] * 32 + [1000]
    link = Link(55.0)
    for work, share, most in ((0.05, 0.25, 1.04), (0.05, 0.5, 1.05), (0.5, 0.5, 1.13), (1.0, 0.25, 1.01), (2.0, 0.1, 1.01)):
        chain = chain_of(sizes, [size / link.speed * work for size in sizes])
        budget = int(sum(sizes) * share)
        plan = choose(chain, budget, link)
        assert plan.expected.peak <= budget
        assert plan.expected.seconds <= most * bound(chain, budget, link), (work, share, plan.expected)


def test_forced_weights_stay():
    chain = chain_of([10, 20, 10, 20], [1.0] * 4)
    plan = choose(chain, 40, Link(10.0), forced={3})
    assert 3 in plan.resident and plan.expected.peak <= 40


def test_a_pass_that_leaves_its_order_is_found_again():
    steps = [Step(place, (place,)) for place in (1, 2, 3, 2, 4)]
    expected = Expected(steps)
    assert expected.find(1) == 0 and expected.find(9) is None
    expected.at = 1
    # Place 3 is called: 2 was left out.
    assert expected.find(3) == 2
    expected.at = 3
    assert expected.find(2) == 3 and expected.find(1) is None
    assert expected.distance(4) == 1 and expected.distance(1) > 1 << 50


def test_models_by_turns_share_a_plan_and_a_pipeline_of_stages_does_not():
    def together(passes, key):
        kinds = Kinds()
        for place in passes:
            kinds.add((place, 3), Record([]))
            kinds.note((place, 3))
        return {place for (place, _), _ in kinds.together((key, 3))}

    assert together([1, 2, 1, 2, 1], 2) == {1, 2}
    stages = [5, *[6] * 12, 7, 5, *[6] * 12]
    assert together(stages, 6) == {6} and together(stages, 7) == {7} and together(stages, 5) == {5}


def test_kinds_of_one_module_share_a_plan_and_the_oldest_goes():
    kinds = Kinds()
    for size in range(6):
        kinds.add((1, size), Record([]))
        kinds.note((1, size))
    assert [key for key, _ in kinds.together((1, 5))] == [(1, 2), (1, 3), (1, 4), (1, 5)]
