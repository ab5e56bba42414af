import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smoe.core.errors import ConfigError
from smoe.offload.policies.admission import Background, Resetting
from smoe.offload.policies.belady import Belady
from smoe.offload.policies.catalog import CATALOG, DEFAULTS, PRESETS
from smoe.offload.policies.frequency import Frequency
from smoe.offload.policies.future import Future
from smoe.offload.policies.gate import GateLookahead
from smoe.offload.policies.least_stale import LeastStaleByLayer
from smoe.offload.policies.lru import LRU
from smoe.offload.policies.oracle import Oracle
from smoe.offload.policies.params import File, Number, Word
from smoe.offload.policies.protocols import PolicySet
from smoe.offload.policies.spec import Geometry, parse_policies
from smoe.offload.policies.substitute import Rule, Substitute
from smoe.offload.policies.table_prefetch import FollowerPrefetch
from smoe.offload.policies.tables import RouteTables
from smoe.offload.policies.waiting import Compute, Wait

GEOMETRY = Geometry(layers=(1, 2, 4), num_experts=16, top_k=4)


def test_the_names_are_these():
    assert {kind: sorted(names) for kind, names in CATALOG.items()} == {
        "evict": ["belady", "fifo", "frequency", "least-stale", "lfru", "lfu", "lru", "random", "utility"],
        "prefetch": ["follow", "gate", "none", "oracle", "token", "utility"],
        "miss": ["auto", "compute", "substitute", "wait"],
        "admit": ["always", "background"],
    }
    assert sorted(PRESETS) == ["quality-first", "speed-first"]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", "evict=lru,prefetch=none,miss=wait,admit=always"),
        ("miss=wait , evict = lru : touch", "evict=lru,prefetch=none,miss=wait,admit=always"),
        ("evict=lru:prefetch=no-touch", "evict=lru:no-touch,prefetch=none,miss=wait,admit=always"),
        (
            "evict=least-stale:cyclic,prefetch=gate:threshold=0.6,miss=wait",
            "evict=least-stale,prefetch=gate:threshold=0.6,miss=wait,admit=always",
        ),
        ("evict=least-stale:fifo,miss=cpu", "evict=least-stale:fifo,prefetch=none,miss=compute,admit=background"),
        (
            "evict=utility:adaptive:makespan,prefetch=utility,miss=cpu",
            "evict=utility:adaptive:makespan,prefetch=utility,miss=compute,admit=always",
        ),
        (
            "evict=utility:inertial:tau=2,miss=auto",
            "evict=utility:inertial:tau=2,prefetch=none,miss=auto,admit=background",
        ),
        ("miss=compute,admit=always", "evict=lru,prefetch=none,miss=compute,admit=always"),
        (
            "prefetch=gate:width=12:threshold=1e-1",
            "evict=lru,prefetch=gate:width=12:threshold=0.1,miss=wait,admit=always",
        ),
        ("quality-first", "evict=frequency,prefetch=none,miss=substitute,admit=background"),
        ("speed-first,prefetch=gate", "evict=frequency,prefetch=gate,miss=substitute:first-choice,admit=background"),
        ("speed-first,evict=lru", "evict=lru,prefetch=none,miss=substitute:first-choice,admit=background"),
        (
            "miss=substitute:threshold=0.15:own",
            "evict=lru,prefetch=none,miss=substitute:threshold=0.15:own,admit=always",
        ),
        ("{evict: lfru, miss: auto}", "evict=lfru,prefetch=none,miss=auto,admit=background"),
        ("evict: utility:mass\nmiss: wait\n", "evict=utility:mass,prefetch=none,miss=wait,admit=always"),
        (
            "prefetch: {name: gate, threshold: 0.6}\npreset: speed-first",
            "evict=frequency,prefetch=gate:threshold=0.6,miss=substitute:first-choice,admit=background",
        ),
        (
            {"evict": {"name": "least-stale", "order": "layer"}, "prefetch": {"name": "token", "file": "a/b.st"}},
            "evict=least-stale:layer,prefetch=token:file=a/b.st,miss=wait,admit=always",
        ),
    ],
)
def test_a_text_or_a_mapping_names_a_combination(text, canonical):
    spec = parse_policies(text)
    assert str(spec) == canonical
    assert parse_policies(canonical) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(parse_policies(canonical))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "evict=nix",
            "policies.evict: 'nix' (one of random, fifo, lru, lfu, lfru, frequency, least-stale, utility, belady)",
        ),
        ("miss=drop", "policies.miss: 'drop' (one of wait, compute, auto, substitute)"),
        ("evicts=lru", "policies: 'evicts' (one of evict, prefetch, miss, admit)"),
        ("lru", "policies: 'lru' (kind=policy, as in evict=lru, or a preset: quality-first, speed-first)"),
        ("evict=lru,quality-first", "policies: 'quality-first' (kind=policy, as in evict=lru)"),
        ("evict=", "policies: 'evict=' (kind=policy, as in evict=lru)"),
        ("evict=lru,", "policies: '' (kind=policy, as in evict=lru)"),
        ("evict=lru,evict=fifo", "policies.evict: 'fifo' (given twice)"),
        ("evict=lru:", "policies.evict.lru: '' (one of touch | no-touch)"),
        ("evict=lru:cold", "policies.evict.lru: 'cold' (one of touch | no-touch)"),
        ("evict=lru:prefetch=cold", "policies.evict.lru.prefetch: 'cold' (one of touch, no-touch)"),
        ("evict=lru:touch:no-touch", "policies.evict.lru.prefetch: 'no-touch' (given twice)"),
        ("evict=fifo:fast", "policies.evict.fifo: 'fast' (it has no parameters)"),
        ("prefetch=gate:wide=3", "policies.prefetch.gate: 'wide' (one of width=..., threshold=...)"),
        ("prefetch=gate:width=0", "policies.prefetch.gate.width: '0' (an integer from 1 up to 4096)"),
        ("prefetch=gate:width=2.5", "policies.prefetch.gate.width: '2.5' (an integer from 1 up to 4096)"),
        ("prefetch=gate:threshold=0", "policies.prefetch.gate.threshold: '0' (a number above 0 up to 1)"),
        ("prefetch=gate:threshold=1.01", "policies.prefetch.gate.threshold: '1.01' (a number above 0 up to 1)"),
        ("prefetch=gate:threshold=nan", "policies.prefetch.gate.threshold: 'nan' (a number above 0 up to 1)"),
        ("prefetch=gate:threshold=inf", "policies.prefetch.gate.threshold: 'inf' (a number above 0 up to 1)"),
        ("prefetch=gate:threshold=high", "policies.prefetch.gate.threshold: 'high' (a number above 0 up to 1)"),
        ("prefetch=gate:threshold=", "policies.prefetch.gate.threshold: '' (a number above 0 up to 1)"),
        ("prefetch=oracle:accuracy=1.5", "policies.prefetch.oracle.accuracy: '1.5' (a number from 0 up to 1)"),
        ("prefetch=token:file=", "policies.prefetch.token.file: '' (a path to a file, without , and :)"),
        (
            "prefetch=follow:frozen",
            "policies.prefetch.follow.learn: 'frozen' (online without file= and trace=: frozen tables without either",
        ),
        (
            "miss=substitute:first-choice:threshold=0.2",
            "policies.miss.substitute.threshold: 0.2 (only with gate-weight: first-choice looks at no weight)",
        ),
        (
            "miss=substitute,admit=background:beta=0",
            "policies.admit.background.beta: '0' (a number above 0 up to 1000)",
        ),
        (
            "admit=background:beta=0.5",
            "policies.admit: 'background' (only with miss=substitute, compute or auto: with miss=wait all that is",
        ),
        (
            "evict=utility:tau=2",
            "policies.evict.utility.tau: 2 (only with inertial or adaptive)",
        ),
        ("evict=utility:makespan", "policies.evict.utility.balance: 'makespan' (only with inertial or adaptive)"),
        ("evict=utility:adaptive:mass", "policies.evict.utility.signal: 'mass' (only with smoothed: adaptive goes by"),
        ("evict=utility:inertial:floor=0", "policies.evict.utility.floor: 0.0 (only with smoothed: inertial goes by"),
        ("evict=utility:inertial:tau=7", "policies.evict.utility.tau: '7' (an integer from 1 up to 6)"),
        (
            "evict=utility:adaptive:makespan:tau=2,miss=cpu",
            "policies.evict.utility.tau: 2 (only with balance=none: makespan chooses it)",
        ),
        (
            "evict=utility:adaptive:difference",
            "policies.evict.utility.balance: 'difference' (only with miss=cpu or auto: without, nothing is computed",
        ),
        ("prefetch=utility", "policies.prefetch: 'utility' (only with evict=utility:inertial or evict=utility:adap"),
        ("evict=utility,prefetch=utility", "policies.prefetch: 'utility' (only with evict=utility:inertial or"),
        ("quality-first,miss=wait", "policies.admit: 'background' (only with miss=substitute"),
        ({"evict": 3}, "policies.evict: 3 (a policy, or a mapping with its name and parameters)"),
        ({"evict": {"order": "layer"}}, "policies.evict: {'order': 'layer'} (a policy, or a mapping with its name"),
        ({"prefetch": {"name": "gate", "width": True}}, "policies.prefetch.gate.width: True (an integer from 1"),
        ({"prefetch": {"name": "gate", "width": [3]}}, "policies.prefetch.gate.width: [3] (an integer from 1"),
        ({"prefetch": {"name": "gate", 3: 3}}, "policies.prefetch.gate: 3 (one of width=..., threshold=...)"),
        ({"preset": "best"}, "policies: 'best' (kind=policy, as in evict=lru, or a preset"),
        ({4: "lru"}, "policies: 4 (one of evict, prefetch, miss, admit)"),
        ("{evict: lru", "policies: '{evict: lru' (YAML: while parsing"),
        ("evict: lru\nevict", "policies: 'evict: lru\\nevict' (YAML: while scanning"),
        (None, "policies: None (a text or a mapping)"),
        (7, "policies: 7 (a text or a mapping)"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(text, message):
    with pytest.raises(ConfigError) as error:
        parse_policies(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def param(key, spec):
    if isinstance(spec, Word):
        return st.sampled_from(spec.choices)
    if isinstance(spec, File):
        return st.just(f"{key}=some/file.safetensors")
    assert isinstance(spec, Number)
    high = min(spec.high, 1e6)
    numbers = st.integers(int(spec.low), int(high)) if spec.integer else st.floats(spec.low, high)
    return numbers.filter(lambda n: n > spec.low or not spec.open_low).map(lambda n: f"{key}={n!r}")


@st.composite
def texts(draw):
    items = []
    for kind, policies in CATALOG.items():
        name = draw(st.sampled_from(sorted(policies)))
        keys = draw(st.lists(st.sampled_from(sorted(policies[name].params) or [""]), unique=True))
        words = [draw(param(key, policies[name].params[key])) for key in keys if key]
        items.append(f"{kind}=" + ":".join([name, *words]))
    return ",".join(draw(st.permutations(items)))


@given(texts())
def test_the_canonical_text_parses_to_the_same(text):
    try:
        spec = parse_policies(text)
    except ConfigError as error:
        assert any(word in str(error) for word in ("only with", "frozen"))  # noqa: PT017
        return
    assert parse_policies(str(spec)) == spec
    assert str(parse_policies(str(spec))) == str(spec)


def test_presets_are_the_papers():
    quality, speed = (parse_policies(name).build(GEOMETRY) for name in ("quality-first", "speed-first"))
    for built in (quality, speed):
        assert isinstance(built.eviction, Resetting)
        assert isinstance(built.eviction._eviction, Frequency)
        assert isinstance(built.admission, Background)
        assert built.admission._beta == 0.5
        assert built.eviction._admission is built.admission
        assert built.prefetch is None
        assert isinstance(built.miss, Substitute)
        assert not built.miss._own_weight
    assert quality.miss._rule == Rule(1.5 / 4)
    assert speed.miss._rule == Rule(float("inf"))


def test_lossy_only_when_asked_for():
    for text, lossy in (("", False), ("miss=auto", False), ("miss=substitute:all", True), ("speed-first", True)):
        spec = parse_policies(text)
        assert spec.lossy == spec.build(GEOMETRY).miss.lossy == lossy
        assert ("lossy" in spec.describe()) == lossy


def test_everything_described():
    assert parse_policies("evict=least-stale:layer").describe() == (
        "evict=least-stale:layer: not used in this epoch first\n"
        "prefetch=none: nothing ahead of demand\n"
        "miss=wait: fetch and wait\n"
        "admit=always: what is fetched gets a slot"
    )


def test_built_as_told():
    built = parse_policies("evict=lru:no-touch,prefetch=gate:threshold=0.6").build(GEOMETRY)
    assert isinstance(built, PolicySet)
    assert isinstance(built.eviction, LRU)
    assert not built.eviction._prefetch_touch
    assert isinstance(built.prefetch, GateLookahead)
    assert (built.prefetch._width, built.prefetch._threshold) == (8, 0.6)
    assert isinstance(built.miss, Wait)
    assert built.admission is None
    built = parse_policies("evict=least-stale:fifo,prefetch=gate,miss=compute").build(GEOMETRY)
    assert (built.prefetch._width, built.prefetch._threshold) == (4, 0.0)
    assert isinstance(built.miss, Compute)
    assert isinstance(parse_policies("evict=least-stale").build(GEOMETRY).eviction, LeastStaleByLayer)


def test_what_is_built_has_no_history():
    spec = parse_policies("prefetch=follow")
    assert spec.build(GEOMETRY).prefetch.tables is not spec.build(GEOMETRY).prefetch.tables
    assert spec.build(GEOMETRY).eviction is not spec.build(GEOMETRY).eviction


@pytest.mark.parametrize("text", ["evict=belady", "evict=belady:free", "prefetch=oracle:accuracy=0.5"])
def test_the_future_is_for_simulations(text):
    spec = parse_policies(text)
    assert spec.needs_future
    for refuse in (spec.check_live, lambda: spec.build(GEOMETRY)):
        with pytest.raises(ConfigError, match=r"^policies\..*: '(belady|oracle)' \(needs a trace: only a simulation"):
            refuse()
    built = spec.build(GEOMETRY, future=Future.of([(1, [2])]))
    assert isinstance(built.eviction, Belady) != isinstance(built.prefetch, Oracle)


def test_policies_that_know_no_future_work_anywhere():
    for kind, name in DEFAULTS.items():
        spec = parse_policies(f"{kind}={name}")
        spec.check_live()
        spec.check_tiers(["disk"])
        assert not spec.needs_future


def test_computing_where_the_weights_are_needs_them_in_memory():
    for miss in ("compute", "auto"):
        spec = parse_policies(f"miss={miss}")
        spec.check_tiers(["disk", "host"])
        with pytest.raises(ConfigError, match=rf"^policies.miss: '{miss}' \(experts are kept in disk: computing one"):
            spec.check_tiers(["disk"])
    parse_policies("miss=wait").check_tiers(["disk"])


def test_tables_come_from_their_file(tmp_path):
    path = tmp_path / "tables.safetensors"
    tables = RouteTables(GEOMETRY.layers, 16)
    tables.next_counts[0, 3, 5] = 2
    tables.save(path)
    prefetch = parse_policies(f"prefetch=follow:frozen:file={path}").build(GEOMETRY).prefetch
    assert isinstance(prefetch, FollowerPrefetch)
    assert prefetch.tables.next_counts[0, 3, 5] == 2
    assert not prefetch._learn
    with pytest.raises(ConfigError, match=r"prefetch\.file: .* \(tables of the model's MoE layers \[1, 2\] and 16"):
        parse_policies(f"prefetch=follow:file={path}").build(Geometry(layers=(1, 2), num_experts=16, top_k=4))


def test_the_policies_load_without_torch():
    code = (
        "import sys, smoe.offload.policies.spec as s; s.parse_policies('quality-first'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
