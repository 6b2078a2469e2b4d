"""Make the files of this folder: letters to an invented shop, and questions about them.

    python examples/tasks/make.py

Every file is a function of the seeds below, so a run reproduces the committed files.
"""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent
SIZES = {"train": 300, "dev": 100, "test": 100}

CITIES = [
    "Lyon",
    "Porto",
    "Graz",
    "Turin",
    "Malmo",
    "Brno",
    "Ghent",
    "Tartu",
    "Cork",
    "Split",
    "Riga",
    "Bergen",
]
PEOPLE = [
    "Anna",
    "Bruno",
    "Clara",
    "Dimitri",
    "Elif",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Karla",
    "Luis",
]
THINGS = [
    "kettle",
    "lamp",
    "bicycle",
    "tent",
    "guitar",
    "printer",
    "blender",
    "jacket",
    "sofa",
    "camera",
    "heater",
    "drill",
]
COLOURS = ["red", "blue", "green", "black", "white", "silver"]
DAYS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
PROBLEMS = {
    "delivery": (
        "the parcel with the {thing} came {days} days late to {city}",
        "my {colour} {thing} has not arrived in {city} after {days} days",
        "the courier left the {thing} with a neighbour in {city}",
    ),
    "payment": (
        "i was charged twice for the {colour} {thing}",
        "the refund for the {thing} did not reach my bank for {days} days",
        "your invoice for the {thing} shows the wrong amount",
    ),
    "account": (
        "i cannot log in since {days} days and {person} cannot either",
        "please change the name on my account to {person}",
        "the link to reset my password does not work in {city}",
    ),
    "product": (
        "the {colour} {thing} broke after {days} days",
        "a part of the {thing} is missing and the manual is for a {colour} one",
        "the {thing} is louder than the old {colour} one of {person}",
    ),
}
OPENINGS = ("hello ,", "dear team ,", "good morning ,", "to whom it may concern ,", "hi ,")
ENDINGS = ("thank you .", "please help .", "kind regards , {person} .", "i wait for an answer .")
MOODS = {"calm": "there is no hurry .", "angry": "this is the last time i order here ."}


def draw(rng: random.Random) -> dict[str, str]:
    return {
        "thing": rng.choice(THINGS),
        "colour": rng.choice(COLOURS),
        "city": rng.choice(CITIES),
        "person": rng.choice(PEOPLE),
        "days": DAYS[rng.randint(1, 10)],
    }


def letter(rng: random.Random, topics: list[str], mood: str | None = None) -> str:
    parts = [rng.choice(OPENINGS)]
    for topic in topics:
        parts.append(rng.choice(PROBLEMS[topic]).format(**draw(rng)) + " .")
    if mood:
        parts.append(MOODS[mood])
    parts.append(rng.choice(ENDINGS).format(**draw(rng)))
    return " ".join(parts)


def classify(rng: random.Random) -> dict[str, str]:
    topic = rng.choice(list(PROBLEMS))
    mood = rng.choice([None, *MOODS])
    return {"label": topic, "text": letter(rng, [topic], mood)}


def multilabel(rng: random.Random) -> dict[str, str]:
    topics = rng.sample(list(PROBLEMS), rng.randint(1, 3))
    mood = rng.choice([None, *MOODS])
    return {"labels": "|".join([*topics, *filter(None, [mood])]), "text": letter(rng, topics, mood)}


def regress(rng: random.Random) -> dict[str, str]:
    days = rng.randint(0, 10)
    text = f"{rng.choice(OPENINGS)} the {rng.choice(THINGS)} came {DAYS[days]} days late ."
    return {"days": str(days), "text": f"{text} {rng.choice(ENDINGS).format(**draw(rng))}"}


def tag(rng: random.Random) -> str:
    words = letter(rng, [rng.choice(list(PROBLEMS))]).split()
    kinds = {**dict.fromkeys(CITIES, "CITY"), **dict.fromkeys(PEOPLE, "PERSON")}
    kinds |= dict.fromkeys(THINGS, "THING")
    lines = []
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        mark = "O"
        if word in COLOURS and after in THINGS:  # it belongs to the thing
            mark = "B-THING"
        elif word in kinds:
            inside = word in THINGS and before in COLOURS
            mark = f"{'I' if inside else 'B'}-{kinds[word]}"
        lines.append(f"{word}\t{mark}")
    return "\n".join(lines) + "\n"


def answer(rng: random.Random) -> dict:
    drawn = draw(rng)
    context = (
        f"{drawn['person']} in {drawn['city']} ordered a {drawn['colour']} {drawn['thing']} . "
        f"it came {drawn['days']} days late ."
    )
    asked, key = rng.choice(
        [
            ("who ordered ?", "person"),
            ("in which city ?", "city"),
            ("what was ordered ?", "thing"),
            ("what was the price ?", None),
        ]
    )
    found = [] if key is None else [{"text": drawn[key], "answer_start": context.index(drawn[key])}]
    return {"question": asked, "context": context, "answers": found}


def choose(rng: random.Random) -> dict:
    topic = rng.choice(list(PROBLEMS))
    replies = {
        "delivery": "we have asked the courier where the parcel is .",
        "payment": "we have sent the money back to your bank .",
        "account": "we have sent you a new password .",
        "product": "we send you a new one and take the old one back .",
    }
    choices = rng.sample(list(replies.values()), rng.randint(2, 4))
    if replies[topic] not in choices:
        choices[rng.randrange(len(choices))] = replies[topic]
    label = choices.index(replies[topic])
    return {"prompt": letter(rng, [topic]), "choices": choices, "label": label}


def embed(rng: random.Random) -> dict[str, str]:
    topic, drawn = rng.choice(list(PROBLEMS)), draw(rng)
    one, two = (text.format(**drawn) for text in rng.sample(PROBLEMS[topic], 2))
    who = f"{drawn['person']} in {drawn['city']}"
    return {"query": f"{who} : {one}", "document": f"hello , {two} . kind regards , {who} ."}


def rows(name: str, part: str, make: Callable) -> list:
    rng = random.Random(f"{name} {part}")
    return [make(rng) for _ in range(SIZES[part])]


def write_table(path: Path, found: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def main() -> None:
    rng = random.Random("letters")
    letters = [letter(rng, rng.sample(list(PROBLEMS), rng.randint(1, 3))) for _ in range(1500)]
    (FOLDER / "letters.txt").write_text("\n".join(letters) + "\n", encoding="utf-8")
    for part in SIZES:
        for make in (classify, multilabel, regress, embed):
            found = rows(make.__name__, part, make)
            write_table(FOLDER / f"{make.__name__}.{part}.csv", found)
        for make in (answer, choose):
            found = rows(make.__name__, part, make)
            text = "".join(json.dumps(row) + "\n" for row in found)
            (FOLDER / f"{make.__name__}.{part}.jsonl").write_text(text, encoding="utf-8")
        tagged = "\n".join(rows("tag", part, tag))
        (FOLDER / f"tag.{part}.conll").write_text(tagged, encoding="utf-8")


if __name__ == "__main__":
    main()
