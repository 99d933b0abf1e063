"""Releases read back from every sink that keeps them."""

import numpy as np
import pytest

from helpers.servers import database
from rillet.errors import InputError
from rillet.release import Releases
from rillet.sink import make_sink
from rillet.sink.reading import open_releases, read_releases
from rillet.web.answers import encoded
from web.worlds import releases, wave

__all__ = ["database"]

NAMES = {
    "mean": ("mean",),
    "histogram": ("up to 10", "10 to 20", "above 20"),
    "quantiles": ("0.1", "0.5", "0.9"),
}
KINDS = ("jsonl", "sqlite", "parquet", "postgres")


def some(names=("mean",), first=1, count=30):
    """Deliveries of two keys, the second of which begins later."""
    parts = []
    for number, key in enumerate([("north", 1), ("south", 2)]):
        t, values = wave(first + 5 * number, count, seed=number)
        rows = np.stack([values + k for k in range(len(names))], axis=1)
        parts.append(releases(key, t, rows, names=names, std=np.linspace(2, 1, count)))
    return parts


@pytest.fixture
def target(tmp_path, request):
    """Options of a sink of some kind, and where it is read back from."""

    def make(kind):
        if kind != "postgres":
            path = str(tmp_path / {"sqlite": "releases.db", "parquet": "releases"}.get(kind, "out"))
            return {"kind": kind, "path": path}, path
        server = request.getfixturevalue("database")
        table = f"read_{abs(hash(tmp_path)):x}"
        account = f"{server.user}:{server.password}"
        address = f"postgresql://{account}@{server.host}:{server.port}/postgres"
        return {"kind": kind, "dsn": server.dsn(), "table": table}, address

    return make


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_delivered_is_read_back(target, kind, names):
    options, path = target(kind)
    parts = some(names)
    with make_sink(options).open() as sink:
        for part in parts:
            sink.deliver(part)
    found = read_releases(path, table=options.get("table", ""))
    assert [list(own) for own in by_key(found)] == [list(own) for own in parts]


def by_key(found):
    """The releases of each key, in the order of keys."""
    for index, _ in enumerate(found.keys):
        (rows,) = np.nonzero(found.key_of == index)
        yield found[int(rows[0]) : int(rows[-1]) + 1]


def test_csv_has_values_and_intervals(tmp_path):
    """What the page and the server give out."""
    (part, _) = some()
    path = tmp_path / "releases.csv"
    path.write_bytes(encoded(part, "csv"))
    found = read_releases(path)
    for name in ("t", "at", "value", "sum", "clip_upper"):
        np.testing.assert_array_equal(getattr(found, name), getattr(part, name))
    np.testing.assert_allclose(found.noise_interval(), part.noise_interval())
    lines = ["key,t,at,name,value,low,high", "north,3,2026-03-01 12:00:00+00:00,mean,2.5,1.5,4.5"]
    path.write_text("\n".join(lines), encoding="utf-8")
    found = read_releases(path)
    assert found.keys == (("north",),)
    assert [float(end[0]) for end in found.noise_interval()] == [1.5, 4.5]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "{}\n", '{"key": [1]}\n', "\x00\n"])
def test_something_else_is_refused(tmp_path, text):
    (tmp_path / "other").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="expected JSON lines of releases"):
        read_releases(tmp_path / "other")


def test_a_folder_of_other_parquet_files_is_refused(tmp_path):
    (tmp_path / "some.parquet").write_bytes(b"PAR1, or not")
    with pytest.raises(InputError, match="expected Parquet files of releases"):
        read_releases(tmp_path)


def test_a_password_is_in_no_message():
    with pytest.raises(InputError) as refused:
        read_releases("postgresql://me:drawer@127.0.0.1:1/live")
    assert "table releases of live on 127.0.0.1:1" in str(refused.value)
    assert "drawer" not in str(refused.value)


# --- the two that a page reads -------------------------------------------------------------------


@pytest.fixture
def both(tmp_path):
    """The same deliveries in SQLite and in Parquet files, cut into many."""
    whole = Releases.join(some(count=60))
    stored = []
    for kind, name in (("sqlite", "releases.db"), ("parquet", "releases")):
        path = str(tmp_path / name)
        with make_sink({"kind": kind, "path": path}).open() as sink:
            for first in range(0, len(whole), 7):
                sink.deliver(whole[first : first + 7])
        stored.append(open_releases(path))
    yield stored
    for one in stored:
        one.__exit__()


def same(one, other):
    assert set(one.keys) == set(other.keys)
    assert len(one) == len(other)
    for first, second in zip(by_key(one), sorted_like(one, other), strict=True):
        assert list(first) == list(second)


def sorted_like(one, other):
    own = {part.keys[part.key_of[0]]: part for part in by_key(other)}
    return [own[key] for key in one.keys]


def test_parquet_files_answer_as_the_database_does(both):
    database, files = both
    assert files.names == database.names
    assert sorted(files.keys) == sorted(database.keys)
    same(files.latest(), database.latest())
    known = {("north", 1): 42}  # after six deliveries
    same(files.latest(known), database.latest(known))
    same(files.everything(), database.everything())
    key = ("south", 2)
    at = database.read(key).at
    for asked in (
        {},
        {"after": 50},
        {"most": 10},
        {"after": 20, "most": 5},
        {"since": f"{at[20]}Z", "until": f"{at[30]}Z"},
        {"since": f"{at[20]}Z", "most": 3},
    ):
        assert list(files.read(key, **asked)) == list(database.read(key, **asked)), asked
    thin = files.read(key, most=10, thin=True)
    assert len(thin) <= 10
    assert thin.t[-1] == at.size + 5
    (one,), (other,) = files.rollup(), database.rollup()
    assert one["keys"] == other["keys"] == 2
    for name in ("sum", "count", "sum_noise_std", "mean", "mean_noise_std"):
        assert one[name] == pytest.approx(other[name])
    assert one["at"] == other["at"]


def test_nothing_was_released_yet(tmp_path):
    (tmp_path / "releases").mkdir()
    with open_releases(tmp_path) as found:
        assert (found.names, found.keys, len(found.latest()), found.rollup()) == ((), [], 0, [])
        assert not len(found.read(("a",), most=10, thin=True))
