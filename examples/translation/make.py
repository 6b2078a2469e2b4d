"""Make the pairs of this folder: numbers up to 9,999 in German and English words.

python examples/translation/make.py
"""

import random
from pathlib import Path

ONES = {
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn",
    "en": "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen",
}
TENS = {
    "de": "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "en": "twenty thirty forty fifty sixty seventy eighty ninety",
}
COUNTS = {"train": 2000, "dev": 100, "test": 100}


def german(number: int) -> str:
    """A number in German words, its parts separated so that they can be learnt."""
    ones, tens = ONES["de"].split(), TENS["de"].split()
    if number >= 1000:
        rest = number % 1000
        start = f"{_one(number // 1000)} tausend"
        return start if not rest else f"{start} {german(rest)}"
    if number >= 100:
        rest = number % 100
        start = f"{_one(number // 100)} hundert"
        return start if not rest else f"{start} {german(rest)}"
    if number < 20:
        return ones[number]
    ten = tens[number // 10 - 2]
    return ten if number % 10 == 0 else f"{_one(number % 10)} und {ten}"


def _one(number: int) -> str:
    return "ein" if number == 1 else ONES["de"].split()[number]


def english(number: int) -> str:
    """A number in English words."""
    ones, tens = ONES["en"].split(), TENS["en"].split()
    if number >= 1000:
        rest = number % 1000
        start = f"{ones[number // 1000]} thousand"
        return start if not rest else f"{start} {english(rest)}"
    if number >= 100:
        rest = number % 100
        start = f"{ones[number // 100]} hundred"
        return start if not rest else f"{start} {english(rest)}"
    if number < 20:
        return ones[number]
    ten = tens[number // 10 - 2]
    return ten if number % 10 == 0 else f"{ten} {ones[number % 10]}"


def main() -> None:
    folder = Path(__file__).parent
    numbers = random.Random(0).sample(range(10_000), sum(COUNTS.values()))
    for part, count in COUNTS.items():
        some, numbers = numbers[:count], numbers[count:]
        for language, write in (("de", german), ("en", english)):
            text = "".join(f"{write(number)}\n" for number in some)
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
