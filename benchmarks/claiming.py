"""w7: what a claim costs in an empty table and in a full one."""

from __future__ import annotations

import asyncio
import time

from msgspec import structs

from benchmarks import filling
from benchmarks.bench import Bench, Result, median, percentile
from benchmarks.programs import foreign, sleeper, steps
from perdure.core.model.claim import ClaimRequest
from perdure.core.model.run import NewRun, Status
from perdure.core.model.turn import Finish, Turn
from perdure.core.model.worker_info import WorkerInfo
from perdure.host import Host
from perdure.store import Store, open_store
from perdure.store.url import MysqlUrl, PostgresUrl

#: Due rows, all of which one claim takes.
DUE = 50
CLAIMS_PER_ROUND = 10
WORKER = WorkerInfo(
    id="bench", host="bench", pid=1, queues=("default",), types=(steps.type,), slots=DUE, lease=3_600_000_000
)


class Table:
    """A store and the claims made on it."""

    def __init__(self, url: str) -> None:
        self.system = Host()
        self.store: Store = open_store(url, self.system)
        #: Milliseconds, for rows that are ready and for rows whose sleep has just ended.
        self.ready: list[float] = []
        self.woken: list[float] = []

    async def claim_ready(self) -> None:
        """Claim runs that were started just now."""
        await self._create(wake_at=0)
        self.ready.append(await self._claim())

    async def claim_woken(self) -> None:
        """Claim runs whose time has come since."""
        due = self.system.now() + 20_000
        await self._create(wake_at=due)
        await asyncio.sleep(0.025)
        assert self.system.now() > due
        self.woken.append(await self._claim())

    async def _create(self, wake_at: int) -> None:
        await self.store.create(
            [
                NewRun(
                    id=self._unique(), type=steps.type, input='{"count":1}', wake_at=wake_at, write_id=self._unique()
                )
                for _ in range(DUE)
            ],
            "bench",
        )

    async def _claim(self) -> float:
        request = ClaimRequest(
            worker=WORKER.id, nonce=self._unique(), limit=DUE, by_age=DUE // 8, types=WORKER.types, queues=WORKER.queues
        )
        begun = time.perf_counter()
        claimed = await self.store.claim(request)
        took = time.perf_counter() - begun
        if len(claimed.runs) != DUE:
            raise RuntimeError(f"a claim of {DUE} due rows got {len(claimed.runs)}; the measurement is void")
        done = Finish(Status.COMPLETED, "4200")
        await self.store.commit([Turn(lease=one.lease, next=done) for one in claimed.runs], WORKER.id)
        return took * 1e3

    def _unique(self) -> str:
        return self.system.entropy(16).hex()


async def w7(bench: Bench) -> Result:
    """The same claims on both tables in turn."""
    sizes = bench.sizes
    alone, beside = Table(_beside(bench)), Table(bench.url)
    for table in (alone, beside):
        await table.store.open()
        await table.store.register(WORKER)
    await filling.fill(
        bench.where,
        filling.finished(sizes.finished, steps.type),
        filling.sleeping(sizes.sleeping, sleeper.type),
        filling.ready(sizes.foreign, foreign.type),
    )
    ratios: list[float] = []
    try:
        for _ in range(sizes.rounds):
            bench.raw.sample()
            for _ in range(CLAIMS_PER_ROUND):
                for table in (alone, beside):
                    await table.claim_ready()
                    await table.claim_woken()
            ratios.append(median(beside.ready[-CLAIMS_PER_ROUND:]) / median(alone.ready[-CLAIMS_PER_ROUND:]))
    finally:
        for table in (alone, beside):
            await table.store.close()
    return bench.result(
        runs=DUE,
        p50_ms=percentile(beside.ready, 0.5),
        p99_ms=percentile(beside.ready, 0.99),
        alone_p50_ms=percentile(alone.ready, 0.5),
        woken_p50_ms=percentile(beside.woken, 0.5),
        woken_alone_p50_ms=percentile(alone.woken, 0.5),
        rows_beside=sizes.finished + sizes.sleeping + sizes.foreign,
        ratio_beside_to_alone=median(ratios),
        ratio_woken_beside_to_alone=percentile(beside.woken, 0.5) / percentile(alone.woken, 0.5),
    )


def _beside(bench: Bench) -> str:
    where = bench.where
    if isinstance(where, PostgresUrl):
        return f"{bench.url}&prefix=alone_"
    if isinstance(where, MysqlUrl):
        return f"{bench.url}alone_"
    other = structs.replace(where, path=f"{where.path}-alone")
    return f"sqlite:///{other.path}?synchronous={other.synchronous}&prefix={other.prefix}"
