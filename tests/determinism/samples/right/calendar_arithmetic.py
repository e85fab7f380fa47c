"""Much date arithmetic, and not one look at a clock."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from perdure import Context, workflow
from perdure.testing import Environment

ZURICH = ZoneInfo("Europe/Zurich")


def next_business_day(day: date) -> date:
    day += timedelta(days=1)
    while day.weekday() > 4:
        day += timedelta(days=1)
    return day


async def transfer(account: str, on: str) -> str:
    return f"transferred to {account} on {on}"


@workflow("samples.right.transfer.v1")
async def pay_later(ctx: Context, account: str, not_before: str) -> str:
    now = ctx.now().astimezone(ZURICH)
    earliest = max(now, datetime.fromisoformat(not_before).replace(tzinfo=UTC))
    day = next_business_day(earliest.date())
    morning = datetime.combine(day, time(8, 30), tzinfo=ZURICH)
    await ctx.sleep_until(morning)
    stamp = datetime.strptime(ctx.now().strftime("%Y-%m-%d"), "%Y-%m-%d")
    return await ctx.step(transfer, account, stamp.date().isoformat())


WORKFLOWS = [pay_later]


async def drive(env: Environment) -> object:
    run = await env.start(pay_later("ch-1", "2026-01-09T12:00:00"))
    await env.advance("30d")
    return await run.result()
