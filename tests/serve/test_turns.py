"""Requests that go on some at a time."""

import asyncio

from ownbert.serve.scheduler import Turns


def test_others_go_on_between_those_that_wait():
    async def run() -> list[int]:
        turns, done, seen = Turns(), [], []

        async def one(number: int) -> None:
            await turns.wait()
            done.append(number)

        waiting = [asyncio.ensure_future(one(number)) for number in range(100)]
        while len(done) < 100:
            seen.append(len(done))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert done == sorted(done)
        return [b - a for a, b in zip(seen, [*seen[1:], 100], strict=True)]

    assert max(asyncio.run(run())) < 20


def test_those_that_left_hold_up_nobody():
    async def run() -> list[int]:
        turns, done = Turns(), []

        async def one(number: int) -> None:
            await turns.wait()
            done.append(number)

        waiting = [asyncio.ensure_future(one(number)) for number in range(40)]
        await asyncio.sleep(0)
        for each in waiting[:30]:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await one(40)
        return done

    done = asyncio.run(asyncio.wait_for(run(), 20))
    assert done[-11:] == [*range(30, 41)]
