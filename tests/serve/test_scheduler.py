"""How sentences that wait become batches, with a translator that the tests hold."""

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.commands import wait_until

from fairseq_paradec.errors import UsageError
from fairseq_paradec.serve.scheduler import (
    ROUNDS,
    DecodingWay,
    Full,
    Job,
    Left,
    Scheduler,
    entering,
    form,
)
from fairseq_paradec.serve.settings import ServerSettings
from fairseq_paradec.translator.translation import Translation

WAY = DecodingWay(("en", "de"), "greedy")
OTHER = WAY._replace(decoding="hgj")


class Held:
    """A translator that notes its batches, and waits before each until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.options: list[dict[str, Any]] = []
        self.go = threading.Semaphore(0)
        self.begun = threading.Semaphore(0)

    def results(
        self,
        texts: list[str],
        on_pass: Any = None,
        on_finish: Any = None,
        admit: Any = None,
        **options: Any,
    ) -> Iterator[Translation]:
        self.batches.append(texts)
        self.options.append(options | {"admit": admit, "on_pass": on_pass})
        self.begun.release()
        assert self.go.acquire(timeout=60)
        for text, end in zip(texts, on_finish or [], strict=False):
            if text == "early":
                end(Translation(text.upper(), 0.0, None, 1))
                while entered := admit(1):
                    ((text, end),) = entered
                    self.batches[-1] = texts = [*texts, text]
                    if text != "bad":
                        end(Translation(text.upper(), 0.0, None, 1))
        if "bad" in texts:
            raise RuntimeError("bad")
        if options.get("decoding") == "wrong":
            raise UsageError("wrong")
        for watch in on_pass or []:
            watch({"start": 0})
        first = texts[: options["batch_size"]]
        yield from (Translation(text.upper(), 0.0, None, 1) for text in first)


@pytest.fixture
def held():
    return Held()


@pytest.fixture
def counted():
    """Of each batch, how many sentences were counted."""
    return []


@pytest.fixture
def scheduler(held, counted):
    settings = ServerSettings((), batch_size=4, max_waiting=5)
    models = SimpleNamespace(models={WAY.pair: held})
    one = Scheduler(models, settings, lambda way, found, seconds: counted.append(len(found)))
    yield one
    for _ in range(100):
        held.go.release()
    one.close(60)


def texts(futures: list[Future]) -> list[str]:
    return [one.result(60).translation.text for one in futures]


def jobs(*told: tuple[int, str, DecodingWay]) -> list[Job]:
    return [Job(turn, text, way, "", None, Future()) for turn, text, way in told]


def formed(size: int, *told: tuple[int, str, DecodingWay]) -> tuple[list[str], list[str]]:
    batch, rest = form(jobs(*told), size)
    return [job.text for job in batch], [job.text for job in rest]


def test_a_batch_has_the_next_sentence_and_those_most_like_it_in_length():
    told = [(1, "aaaa", WAY), (0, "bb", WAY), (2, "ccccc", WAY), (3, "ddd", WAY), (4, "e", WAY)]
    assert formed(3, *told) == (["bb", "ddd", "e"], ["aaaa", "ccccc"])


def test_a_batch_is_of_one_way():
    told = [(0, "a", OTHER), (0, "b", WAY), (1, "c", OTHER)]
    assert formed(8, *told) == (["a", "c"], ["b"])


def test_what_is_watched_is_decoded_alone():
    traced = WAY._replace(traced=True)
    assert formed(8, (0, "a", traced), (1, "b", traced)) == (["a"], ["b"])


def test_a_lone_sentence_is_decoded_at_once_and_those_that_came_meanwhile_together(scheduler, held):
    first = scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    later = [scheduler.submit(WAY, [text]) for text in "bcd"]
    held.go.release()
    held.go.release()
    assert texts(first) == ["A"] and [texts(one) for one in later] == [["B"], ["C"], ["D"]]
    assert held.batches == [["a"], ["b", "c", "d"]]


def test_after_a_batch_the_next_is_waited_for_until_it_is_as_large(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)  # the thread is busy, and the test takes its place
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(scheduler._next, 3, 60.0)
        for text in "bcd":
            assert not taken.done()
            scheduler.submit(WAY, [text])
        assert [job.text for job in taken.result(60)] == ["b", "c", "d"]
    scheduler.submit(WAY, ["e"])
    assert [job.text for job in scheduler._next(3, 0.0)] == ["e"]  # but not for long


def test_what_leaves_while_more_is_waited_for_ends_no_thread(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)  # the thread is busy, and the test takes its place
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(scheduler._next, 2, 0.2)
        (left,) = scheduler.submit(WAY, ["b"])
        left.cancel()
        scheduler.submit(WAY, [])  # which takes the cancelled one out
        assert wait([taken], 1).not_done
        scheduler.submit(WAY, ["c"])
        assert [job.text for job in taken.result(60)] == ["c"]


def test_a_sentence_is_answered_when_it_is_done(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    futures = scheduler.submit(WAY, ["b", "early", "c", "bad"])
    held.go.release()
    held.go.release()
    assert texts(futures[1:2]) == ["EARLY"]
    for _ in range(4):
        held.go.release()
    assert texts([futures[0], futures[2]]) == ["B", "C"]
    assert isinstance(futures[3].exception(60), RuntimeError)
    assert held.batches[1:] == [["b", "c", "bad", "early"], ["b"], ["c"], ["bad"]]


def test_what_waits_enters_a_batch_where_others_have_left_it(scheduler, held, counted):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    first = scheduler.submit(WAY, ["b", "early", "c", "d"])
    held.go.release()
    assert held.begun.acquire(timeout=60)
    left, *others = (scheduler.submit(WAY, [text])[0] for text in "efg")
    left.cancel()
    held.go.release()
    assert texts([*first, *others]) == ["B", "EARLY", "C", "D", "F", "G"]
    scheduler.close(60)
    assert held.batches == [["a"], ["b", "c", "d", "early", "f", "g"]]
    assert counted == [1, 6]


def test_only_what_fits_and_whose_turn_it_is_enters():
    def entered(
        count: int, longest: int, *told: tuple[int, str, DecodingWay]
    ) -> tuple[list[str], str]:
        chosen, rest = entering(jobs(*told), WAY, count, longest)
        return [job.text for job in chosen], "".join(job.text for job in rest)

    told = [(2, "c", WAY), (0, "a", WAY), (1, "bb", WAY), (3, "d", OTHER), (4, "e", WAY)]
    assert entered(9, 2, *told) == (["a", "bb", "c"], "de")
    assert entered(2, 2, *told) == (["a", "bb"], "cde")
    assert entered(9, 1, *told) == (["a"], "cbbde")


@pytest.mark.parametrize(
    ("size", "sentences", "left", "waiting", "enter"),
    [
        (8, 8, 7, 3, 3),
        (8, 8, 7, 2, 0),  # a new batch would be of three
        (4, 4, 1, 2, 1),
        (4, 4, 1, 3, 0),  # and of six
        (8, 8, 1, 20, 1),  # and of eight, for it has no more
        (4, ROUNDS * 4 - 1, 1, 2, 1),
        (4, ROUNDS * 4, 1, 2, 0),
    ],
)
def test_a_batch_that_is_not_as_a_new_one_would_be_ends(
    held, size, sentences, left, waiting, enter
):
    settings = ServerSettings((), batch_size=8)
    scheduler = Scheduler(SimpleNamespace(models={WAY.pair: held}), settings, lambda *_: None)
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)  # the thread is busy, and the test takes its place
    scheduler.submit(WAY, ["b"] * waiting)
    batch = jobs(*[(0, "c", WAY)] * sentences)
    assert len(scheduler._more(batch, size, left)) == enter
    assert (len(batch) - sentences, scheduler.waiting) == (enter, waiting - enter)
    for _ in range(9):
        held.go.release()
    scheduler.close(60)


@pytest.mark.parametrize(("characters", "enter"), [(10, 1), (11, 0)])
@pytest.mark.parametrize(("max_tokens", "own"), [(20, 1), (4, 10)])
def test_a_sentence_enters_if_it_is_no_longer_than_the_share_of_one_or_than_the_longest(
    held, max_tokens, own, characters, enter
):
    settings = ServerSettings((), max_tokens=max_tokens)
    scheduler = Scheduler(SimpleNamespace(models={WAY.pair: held}), settings, lambda *_: None)
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)  # the thread is busy, and the test takes its place
    scheduler.submit(WAY, ["b" * characters])
    assert len(scheduler._more(jobs(*[(0, "c" * own, WAY)] * 2), 2, 1)) == enter
    for _ in range(2):
        held.go.release()
    scheduler.close(60)


def test_a_sentence_that_enters_and_fails_fails_alone(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    first = scheduler.submit(WAY, ["b", "early", "c", "d"])
    held.go.release()
    assert held.begun.acquire(timeout=60)
    bad, good = (scheduler.submit(WAY, [text])[0] for text in ("bad", "e"))
    for _ in range(6):
        held.go.release()
    assert texts([*first, good]) == ["B", "EARLY", "C", "D", "E"]
    assert isinstance(bad.exception(60), RuntimeError)


def test_a_long_text_does_not_hold_up_others(held):
    settings = ServerSettings((), batch_size=4)
    scheduler = Scheduler(SimpleNamespace(models={WAY.pair: held}), settings, lambda *_: None)
    scheduler.submit(OTHER, ["x"])
    assert held.begun.acquire(timeout=60)
    long = scheduler.submit(WAY, list("abcde"))
    short = scheduler.submit(OTHER, ["y"])
    for _ in range(4):
        held.go.release()
    scheduler.close(60)
    assert texts([*short, *long]) == ["Y", *"ABCDE"]
    assert held.batches == [["x"], [*"abcd"], ["y"], ["e"]]


def test_newer_sentences_do_not_hold_up_a_long_text(held):
    """Whoever comes has a turn behind what is decoded then."""
    settings = ServerSettings((), batch_size=1)
    scheduler = Scheduler(SimpleNamespace(models={WAY.pair: held}), settings, lambda *_: None)
    scheduler.submit(WAY, list("abcd"))
    for newer in "wxyz":
        assert held.begun.acquire(timeout=60)
        scheduler.submit(WAY, [newer])
        held.go.release()
    for _ in range(4):
        held.go.release()
    scheduler.close(60)
    assert "".join(text for (text,) in held.batches) == "abwcxydz"


def test_what_enters_a_batch_has_had_its_turn(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)  # the thread is busy, and the test takes its place
    scheduler.submit(WAY, list("bcd"))
    assert len(scheduler._more(jobs(*[(0, "c", WAY)] * 4), 4, 2)) == 2
    scheduler.submit(WAY, list("e"))
    assert [job.text for job in sorted(scheduler._waiting, key=lambda job: job.turn)] == ["d", "e"]


def test_what_has_a_draft_is_entered_by_nothing_and_a_lone_sentence_neither(scheduler, held):
    """What enters would lose its draft."""
    for way, texts_given, enters in (
        (WAY, ["a", "b"], True),
        (WAY._replace(drafted=True), ["a", "b"], False),
        (WAY, ["a"], False),
    ):
        futures = scheduler.submit(way, texts_given, ["x"] * len(texts_given))
        held.go.release()
        assert texts(futures) == [text.upper() for text in texts_given]
        options = held.options[-1]
        assert (options["admit"] is not None) is enters
        assert options["drafts"] == (["x"] * len(texts_given) if way.drafted else None)


def test_a_batch_is_decoded_as_it_was_asked_for(held):
    settings = ServerSettings((), speed_profile="profile", max_tokens=7)
    scheduler = Scheduler(SimpleNamespace(models={WAY.pair: held}), settings, lambda *_: None)
    for way, beam, decoding, profile in (
        (DecodingWay(WAY.pair), None, None, "profile"),
        (DecodingWay(WAY.pair, "auto_fast"), None, "auto_fast", "profile"),
        (DecodingWay(WAY.pair, "greedy", beam=2, others=1), 2, "greedy", None),
    ):
        held.go.release()
        texts(scheduler.submit(way, ["a"]))
        options = held.options[-1]
        assert (options.get("beam"), options.get("decoding")) == (beam, decoding)
        assert (options.get("speed_profile"), options["max_tokens"]) == (profile, 7)
        assert options["others"] == way.others
    scheduler.close(60)


@pytest.mark.parametrize(
    ("recent", "waiting", "threads", "seconds"),
    [
        ([], 9, 1, 1),  # nothing is known
        ([(4, 2.0), (4, 6.0)], 9, 1, 9),
        ([(4, 2.0), (4, 6.0)], 9, 2, 5),  # 4.5, and no earlier
        ([(8, 0.1)], 9, 1, 1),
        ([(1, 7.0)], 9, 1, 60),
    ],
)
def test_how_long_what_waits_will_take(held, recent, waiting, threads, seconds, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    held.twin = lambda: held
    settings = ServerSettings((), threads=threads)
    scheduler = Scheduler(SimpleNamespace(models={WAY.pair: held}), settings, lambda *_: None)
    assert (len(scheduler._threads), scheduler._cores) == (threads, 1)
    scheduler._recent.extend(recent)
    assert scheduler._seconds_of(waiting) == seconds
    scheduler.close(60)


def test_as_many_may_wait_as_the_limit_says(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    scheduler.submit(WAY, ["b"] * 2)
    with pytest.raises(Full):
        scheduler.submit(WAY, ["c"] * 4)
    scheduler.submit(WAY, ["c"] * 3)
    assert scheduler.waiting == 5


def test_of_two_threads_that_want_more_the_one_with_enough_goes_on(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)  # the thread is busy, and the test takes its place
    with ThreadPoolExecutor(2) as pool:
        few, many = (pool.submit(scheduler._next, count, 60.0) for count in (3, 4))
        try:
            scheduler.submit(WAY, ["b"])
            wait_until(lambda: len(scheduler._wanted) == 2)
            scheduler.submit(WAY, ["c"])
            assert not (few.done() or many.done())
            scheduler.submit(WAY, ["d"])
            assert [job.text for job in few.result(30)] == ["b", "c", "d"]
            scheduler.submit(WAY, list("efgh"))
            assert len(many.result(30)) == 4
        finally:
            scheduler.close(0)  # which ends their waiting


def test_more_than_may_wait_is_refused_and_says_when_to_come_again(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    first = scheduler.submit(WAY, list("abcdefgh"))  # nothing waited: a long text has its turn
    with pytest.raises(Full) as refused:
        scheduler.submit(WAY, ["b"])
    assert 1 <= refused.value.seconds <= 60
    for one in first[:6]:
        one.cancel()
    scheduler.submit(WAY, ["b"])


def test_a_batch_that_ends_while_one_is_refused_disturbs_nobody(scheduler, held):
    """How long to wait is estimated from the last batches, which the decoding thread notes."""

    class Slow(deque):
        def __iter__(self):
            for one in super().__iter__():
                held.go.release()  # the batch that runs ends now
                assert not ended.wait(0.5)
                yield one

        def append(self, one):
            super().append(one)
            ended.set()

    ended = threading.Event()
    scheduler._recent = Slow([(1, 1.0), (1, 1.0)])
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    scheduler.submit(WAY, list("bcdef"))
    with pytest.raises(Full):
        scheduler.submit(WAY, ["g"])
    assert ended.wait(60)


def test_who_leaves_costs_nothing_more(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    left, stays = scheduler.submit(WAY, ["b"]), scheduler.submit(WAY, ["c"])
    assert left[0].cancel()
    held.go.release()
    held.go.release()
    assert texts(stays) == ["C"] and held.batches == [["a"], ["c"]]


def test_a_watch_ends_the_decoding_of_who_has_left(scheduler, held):
    def watch(one: Any) -> None:
        raise Left

    (future,) = scheduler.submit(WAY._replace(traced=True), ["a"], None, [watch])
    held.go.release()
    assert isinstance(future.exception(60), Left)
    held.go.release()
    assert texts(scheduler.submit(WAY, ["b"])) == ["B"]


def test_a_sentence_that_fails_fails_alone(scheduler, held):
    scheduler.submit(WAY, ["a"])
    assert held.begun.acquire(timeout=60)
    futures = scheduler.submit(WAY, ["b", "bad", "c"])
    for _ in range(5):
        held.go.release()
    assert texts([futures[0], futures[2]]) == ["B", "C"]
    assert isinstance(futures[1].exception(60), RuntimeError)


def test_a_mistake_of_options_is_told_to_all(scheduler, held):
    futures = scheduler.submit(WAY._replace(decoding="wrong"), ["a", "b"])
    held.go.release()
    assert [str(one.exception(60)) for one in futures] == ["wrong", "wrong"]


def test_closing_decodes_what_waits(held):
    settings = ServerSettings((), batch_size=1)
    scheduler = Scheduler(SimpleNamespace(models={WAY.pair: held}), settings, lambda *_: None)
    futures = scheduler.submit(WAY, list("abc"))
    for _ in range(3):
        held.go.release()
    scheduler.close(60)
    assert texts(futures) == ["A", "B", "C"]
