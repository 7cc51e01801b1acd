"""IterableDatasets: read by the loop, a thread or processes, seeded, resumed, sharded."""

from __future__ import annotations

import threading
import time
from itertools import count, islice

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper
from usual_sources import SizedStream, Stream, mapping, pair

from fastloop import FastLoader


class Stateful(IterableDataset):
    """Numbers of a generator of its own, which continues where its state says."""

    def __init__(self, count: int = 20) -> None:
        self.count, self.next, self.epoch = count, 0, 0

    def __iter__(self):
        while self.next < self.count:
            self.next += 1
            yield 100 * self.epoch + self.next - 1
        self.next = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict:
        return {"next": self.next}

    def load_state_dict(self, state: dict) -> None:
        self.next = state["next"]


class Drawn(IterableDataset):
    """Random numbers, and the thread that draws each."""

    def __init__(self, count: int = 9) -> None:
        self.count, self.threads = count, []

    def __iter__(self):
        for _ in range(self.count):
            self.threads.append(threading.get_ident())
            yield torch.rand(2)


class Endless(IterableDataset):
    taken = 0

    def __iter__(self):
        for number in count():
            self.taken = number
            yield number


class Failing(IterableDataset):
    def __iter__(self):
        yield from range(5)
        raise ZeroDivisionError("of the stream")


class Onward(IterableDataset):
    """Slow numbers that go on where the epoch before was left."""

    def __init__(self) -> None:
        self.last = -1

    def __iter__(self):
        while True:
            time.sleep(0.003)
            self.last += 1
            yield self.last


class OwnIterator(Onward):
    """The same, as its own iterator."""

    def __iter__(self):
        return self

    def __next__(self) -> int:
        time.sleep(0.003)
        self.last += 1
        return self.last


def numbers(loader) -> list:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("make", [Onward, OwnIterator])
def test_no_sample_is_lost_if_an_epoch_is_left(make):
    """A thread would read ahead of such slow steps, and its samples would be gone."""
    loader, seen = FastLoader(make(), 2), []
    for _ in range(3):
        for batch in islice(loader, 10):
            seen += batch.tolist()
            time.sleep(0.02)
    assert seen == [*range(60)]
    assert loader.num_threads == 0


@pytest.mark.parametrize("num_threads", [None, 0, 1])
def test_thread_that_is_asked_for_reads_ahead(num_threads):
    source = Drawn()
    loader = FastLoader(source, 2, num_threads=num_threads)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [2, 2, 2, 2, 1]
    here = threading.get_ident()
    # If nothing is said, the loop reads.
    if num_threads != 1:
        assert set(source.threads) == {here}
    else:  # the loop reads a loader's first batch, to see what it draws from
        assert set(source.threads[:2]) == {here} != set(source.threads[2:])
    assert loader.engine == "python"


@pytest.mark.heavy
@pytest.mark.parametrize("settings", [{}, {"drop_last": True}, {"batch_size": None}], ids=str)
@pytest.mark.parametrize("source", [Stream(mapping, 11), SizedStream(pair, 11)])
def test_processes_read_their_shares_as_dataloaders_workers_do(source, settings):
    settings = {"batch_size": 3, "num_workers": 2} | settings
    ours, theirs = FastLoader(source, **settings), DataLoader(source, **settings)
    assert repr(list(ours)) == repr(list(theirs))
    assert ours.num_workers == theirs.num_workers


def test_settings_of_processes_reach_them():
    seen = torch.zeros(2).share_memory_()
    loader = FastLoader(
        Stream(pair),
        2,
        num_workers=2,
        worker_init_fn=lambda number: seen[number].fill_(1),
        timeout=100,
        multiprocessing_context="fork",
    )
    assert len(list(loader)) == 6
    assert seen.tolist() == [1, 1]


@pytest.mark.parametrize("settings", [{}, {"num_threads": 0}, {"num_workers": 2}], ids=str)
@pytest.mark.parametrize(
    "make", [Stateful, lambda: Stream(int, 20), Drawn], ids=["stateful", "plain", "drawn"]
)
def test_state_resumes_the_rest_of_an_epoch(make, settings):
    if settings.get("num_workers") and make is not Stateful and not isinstance(make(), Stream):
        pytest.skip("workers' samples are seeded by worker")
    loader = FastLoader(make(), 3, seed=0, **settings)
    list(loader)
    running = iter(loader)
    first = [next(running).tolist() for _ in range(2)]
    state = loader.state_dict()
    rest = numbers(running)
    assert first
    assert rest
    resumed = FastLoader(make(), 3, seed=0, **settings)
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    assert numbers(resumed) == rest
    assert numbers(resumed) == numbers(loader)


def test_state_of_the_dataset_is_what_it_was_at_the_batch_and_not_ahead_of_it():
    loader = FastLoader(Stateful(), 3)
    running = iter(loader)
    next(running)
    assert loader.state_dict()["dataset"] == {"next": 3}
    next(running)
    assert loader.state_dict()["dataset"] == {"next": 6}
    running.close()
    torch.save(loader.state_dict(), "/dev/null")


class OwnIterator(Stateful):
    """An iterable that is its own iterator, and begins anew when it is iterated over."""

    def __init__(self, restarts: bool) -> None:
        super().__init__()
        self.restarts = restarts

    def __iter__(self):
        self.next = 0 if self.restarts else self.next
        return self

    def __next__(self) -> int:
        if self.next == self.count:
            raise StopIteration
        self.next += 1
        return self.next - 1


@pytest.mark.parametrize("settings", [{}, {"num_threads": 0}], ids=str)
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 4])
def test_an_iterable_that_is_its_own_iterator_continues_where_its_state_says(
    taken, restarts, settings
):
    stream = OwnIterator(restarts)
    loader = FastLoader(stream, 3, **settings)
    running = iter(loader)
    delivered = [*islice(running, taken)]
    state = loader.state_dict()
    rest = numbers(running)
    assert len(delivered) == taken
    resumed = FastLoader(stream, 3, **settings)
    resumed.load_state_dict(state)
    assert numbers(resumed) == rest


def test_samples_draw_by_their_numbers():
    expected = torch.cat(list(FastLoader(Drawn(), 2, num_threads=0, seed=0)))
    state = torch.get_rng_state()
    assert torch.equal(torch.cat(list(FastLoader(Drawn(), 3, num_threads=1, seed=0))), expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(torch.cat(list(FastLoader(Drawn(), 3, seed=1))), expected)


def test_endless_stream_is_read_as_the_loop_goes_on():
    source = Endless()
    assert numbers(islice(FastLoader(source, 2), 3)) == [[0, 1], [2, 3], [4, 5]]
    assert source.taken < 30
    with pytest.raises(TypeError, match="IterableDataset"):
        len(FastLoader(source))


@pytest.mark.parametrize("num_threads", [0, 1])
def test_error_is_raised_at_its_batch(num_threads):
    seen = []
    with pytest.raises(ZeroDivisionError, match="of the stream"):
        seen.extend(numbers(FastLoader(Failing(), 2, num_threads=num_threads)))
    loader = iter(FastLoader(Failing(), 2, num_threads=num_threads))
    assert [next(loader).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ZeroDivisionError):
        next(loader)


def test_batches_are_transformed_also_the_short_last_one():
    from torchvision.transforms import v2

    loader = FastLoader(Stream(float, 7), 3, transform=lambda batch: batch + 1)
    assert numbers(loader) == [[1, 2, 3], [4, 5, 6], [7]]
    images = Stream(lambda index: torch.arange(12.0).view(3, 2, 2), 5)
    flipped = list(FastLoader(images, 3, transform=v2.RandomHorizontalFlip(0.5)))
    assert [batch.shape for batch in flipped] == [(3, 3, 2, 2), (2, 3, 2, 2)]


def test_sharded_stream_says_so():
    for settings in ({"rank": 0, "world_size": 1}, {}):
        assert len(list(FastLoader(Stream(pair), 2, **settings))) == 5


def test_empty_stream_has_no_batches():
    assert list(FastLoader(Stream(pair, 0), 2)) == []
    assert list(FastLoader(Stream(pair, 1), 2, drop_last=True)) == []


def test_samples_of_an_iterable_have_no_indices_to_list():
    with pytest.raises(TypeError, match="have no indices"):
        list(FastLoader(Stream(float, 7), 3).batch_sampler)


def test_a_pipe_of_torch_is_shuffled_where_dataloader_shuffles_it():
    pipe = IterableWrapper(range(20)).shuffle()
    for shuffle in (True, False, None):
        delivered = [number for batch in FastLoader(pipe, 4, shuffle=shuffle) for number in batch]
        assert sorted(delivered) == [*range(20)]
        assert (delivered == [*range(20)]) is (shuffle is False)
        pipe = IterableWrapper(range(20)).shuffle()
    with pytest.raises(ValueError, match="shuffle=True with an IterableDataset"):
        FastLoader(Stream(int, 20), shuffle=True)


class Restarting(OwnIterator):
    """An iterator that begins anew after its end."""

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            self.next = 0
            raise


@pytest.mark.parametrize("settings", [{}, {"num_threads": 0}, {"drop_last": True}], ids=str)
@pytest.mark.parametrize("make", [lambda: Restarting(restarts=False), Stateful])
def test_the_end_of_an_iterable_is_the_end_of_the_epoch(make, settings):
    loader = FastLoader(make(), 3, **settings)
    for _ in range(2):
        assert [len(batch) for batch in islice(loader, 20)][:6] == [3] * 6
    loader = FastLoader(make(), 3, **settings)
    sizes = [len(batch) for batch in islice(loader, 20)]
    assert sizes == ([3] * 6 if settings.get("drop_last") else [*[3] * 6, 2])


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("make", [lambda: Restarting(restarts=False), Stateful])
def test_state_of_the_last_batch_resumes_an_epoch_without_a_rest(make, size):
    loader = FastLoader(make(), size)
    running = iter(loader)
    delivered = [*islice(running, len(range(0, 20, size)))]
    state = loader.state_dict()
    assert sum(map(len, delivered)) == 20
    resumed = FastLoader(make(), size)
    resumed.load_state_dict(state)
    assert numbers(islice(resumed, 1)) == []
    following = numbers(islice(resumed, len(delivered)))
    assert [number % 100 for batch in following for number in batch] == [*range(20)]
