"""The judge of endurance runs, by samples that leak and samples that do not."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.faults.soak.endurance import EndurancePlan
from tests.faults.soak.samples import Sample
from tests.faults.soak.verdict import Limit, judge
from tests.services.cases import check_each

HOUR = EndurancePlan(3600, seed=1)
Curve = Callable[[float], float]
_chance = random.Random(5)


def noise(size: float) -> float:
    return _chance.uniform(-size, size)


def until(seconds: float, level: float) -> Curve:
    """Return a curve that rises to a level, and stays."""
    return lambda at: level * min(at / seconds, 1.0)


FLAT = (
    ("server.given out beyond caches MiB", lambda at: 80 + noise(15)),
    ("server.given out beyond caches MiB", until(900, 200)),
    ("server.given out beyond caches MiB", lambda at: 80 + 80 * (int(at) % 700 < 20)),
    ("server.beyond caches MiB", lambda at: 180 + at / 60 + noise(10)),
    ("server.thousand blocks of Python", until(1500, 900)),
    ("server.descriptors", lambda at: 70 + noise(6)),
    ("rows.audit", lambda at: min(at, 600 + at % 60) * 60),
    ("rows.table_versions", until(1600, 9_000)),
    ("rows.table_versions", lambda at: 9 * (at if at < 864 else 864 + at % 864)),
    ("catalog.MiB", until(1600, 30)),
    ("disk.temporary files", lambda at: 8 + int(at) % 3),
)
LEAKING = (
    ("server.given out beyond caches MiB", lambda at: 80 + at / 60 + noise(10)),
    ("server.given out beyond caches MiB", lambda at: 80 + 10 * (at // 400)),
    ("server.given out beyond caches MiB", lambda at: 80 + 80 * (int(at) % 700 < 20) + at / 60),
    ("server.thousand blocks of Python", lambda at: 600 + at / 20),
    ("children.anonymous MiB", lambda at: 300 + at / 40),
    ("server.descriptors", lambda at: 70 + at / 90),
    ("server.threads", lambda at: 70 + at / 120),
    ("rows.audit", lambda at: at * 60),
    ("rows.lineage", lambda at: at / 10),
    ("rows.of_a_table_to_come", lambda at: at / 10),
    ("rows.table_versions", lambda at: at * 5),
    ("rows.table_versions", lambda at: 9 * (864 + at % 864 + at / 8)),
    ("catalog.MiB", lambda at: 1 + at / 24),
    ("catalog.log MiB", lambda at: 4 + at / 60),
    ("disk.root MiB", lambda at: 50 + at / 20),
    ("disk.temporary files", lambda at: 8 + at / 180),
    ("waiting.audit", lambda at: at / 10),
)


def samples_of(figure: str, curve: Curve, seconds: int = 3600) -> list[Sample]:
    return [Sample(at, {figure: curve(at)}) for at in range(0, seconds + 1, 10)]


def test_judge_complains_of_what_grows() -> None:
    def check(case: tuple[str, Curve]) -> None:
        [judgement] = judge(samples_of(*case), HOUR.limits)
        assert "GROWS" in judgement.complaint and "GROWS" in str(judgement)

    check_each(LEAKING, check)


def test_judge_accepts_what_is_flat() -> None:
    def check(case: tuple[str, Curve]) -> None:
        [judgement] = judge(samples_of(*case), HOUR.limits)
        assert not judgement.complaint, str(judgement)

    check_each(FLAT, check)


def test_judge_complains_of_a_single_sample_above_a_bound() -> None:
    flat = samples_of("cache.rights", lambda at: 900)
    flat[5] = Sample(50, {"cache.rights": 1_001, "bound.cache": 7, "bound.rights": 1_000})
    assert [each.complaint for each in judge(flat, HOUR.limits)] == ["ABOVE its bound of 1,000.0"]
    [judgement] = judge(samples_of("server.descriptors", lambda at: 3_000), HOUR.limits)
    assert judgement.complaint == "ABOVE its bound of 2,000.0"


def test_judge_says_nothing_of_growth_before_a_figure_can_have_settled() -> None:
    limit = Limit("rows", growth=5, most=99, settles=400)
    [short] = judge(samples_of("rows", lambda at: at / 10, 600), [limit])
    [long] = judge(samples_of("rows", lambda at: at / 10, 900), [limit])
    assert (short.complaint, bool(long.complaint)) == ("", True)


def test_every_table_of_the_catalog_is_judged_within_an_hour() -> None:
    assert [limit.figure for limit in HOUR.limits if limit.settles > HOUR.seconds / 2] == []
