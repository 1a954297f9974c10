"""What holds in every test: shapes are checked, threads are few, and nothing is written to the home folder."""

import os
import signal
from collections.abc import Iterator

import pytest
from jaxtyping import install_import_hook

# Two threads suit the small tensors of tests; one where xdist runs several workers. Set before torch is imported,
# and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")

# Every call into the maths is checked against its annotated shapes and types. A whole number counts as a float, as it
# does for type checkers. The hook pastes this text in front of a call, hence the expression.
install_import_hook("upweight.objective", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")


@pytest.fixture(scope="session", autouse=True)
def _interrupts_arrive() -> None:
    """A shell's background job starts with SIGINT ignored, and so would every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _cache_beside_the_tests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what upweight caches (warm-ups, unpacked models) in pytest's own cache, so that a second run is quick."""
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("upweight") if cache is not None else tmp_path_factory.mktemp("upweight")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UPWEIGHT_CACHE", str(folder))
        yield
