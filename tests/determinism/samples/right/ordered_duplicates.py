"""Duplicates are removed with a dict, which keeps the order of insertion."""

from collections import Counter, defaultdict

from perdure import Context, workflow
from perdure.testing import Environment


async def count(word: str, times: int) -> str:
    return f"{word}:{times}"


async def index(letter: str, words: list[str]) -> str:
    return f"{letter}={','.join(words)}"


@workflow("samples.right.words.v1")
async def count_words(ctx: Context, text: str) -> list[str]:
    words = list(dict.fromkeys(text.split()))
    counted = Counter(text.split())
    by_letter: defaultdict[str, list[str]] = defaultdict(list)
    for word in words:
        by_letter[word[0]].append(word)
    lines = [await ctx.step(count, word, times) for word, times in counted.most_common()]
    for letter, starting in by_letter.items():
        lines.append(await ctx.step(index, letter, starting))
    lines += sorted(by_letter.keys() - counted.keys())
    return lines


WORKFLOWS = [count_words]


async def drive(env: Environment) -> object:
    run = await env.start(count_words("to be or to"))
    return await run.result()
