"""Sentence splitting of plain text in English and Chinese, with a rule that takes linear time.

An English sentence ends after ``.``, ``!`` or ``?`` (and closing quotes and brackets) if whitespace
and a character that can start a sentence follow; the marks of Hindi, Arabic, Urdu, Armenian,
Ethiopic, Burmese and Khmer follow the same rule. A full stop after a common abbreviation, a single
initial or the number of a list item does not end a sentence. A Chinese sentence ends after a run of
``。！？；……`` and closing quotes, with or without whitespace. A line break ends any sentence.
"""

import re

CLOSING = "\"'”’»)]}）】》」』〉〕"
ENDS = ".!?。！？；…｡।॥؟۔։።။។"
# A match always takes the whole run, so no character is scanned twice.
RUN = re.compile(rf"([{ENDS}]+[{re.escape(CLOSING)}]*)(\s*)")
CHINESE_END = re.compile(r"[。！？；｡]|……")
OPENING = frozenset("\"'“‘«([{（【《「『〈〔¿¡")
LOOK_BACK = 24
LAST_WORD = re.compile(r"[^\s(\[{\"'“‘（「『,;:/—–-]*\Z")
DOTTED = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]\Z")

_ALWAYS = """
mr mrs ms mx dr prof st mt ft messrs mme mlle rev hon fr sr jr gov sen rep pres gen col maj capt
cmdr lt sgt cpl pvt adm supt insp vs viz cf al approx ca inc ltd co corp bros dept univ assn est
jan feb mar apr jun jul aug sep sept oct nov dec ave blvd rd ph.d
"""
# Abbreviations only before a number: "No. 5", but not "No. I will not."
_BEFORE_NUMBER = "no nos vol vols fig figs p pp ch sec art op eq ed nr"
ABBREVIATIONS = frozenset(_ALWAYS.split())
BEFORE_NUMBER = frozenset(_BEFORE_NUMBER.split())


def split_sentences(text: str) -> list[str]:
    """Split ``text`` into stripped sentences, which contain all its characters but whitespace."""
    return [sentence for line in text.splitlines() for sentence in _split_line(line)]


def _split_line(line: str) -> list[str]:
    sentences = []
    start = 0
    for run in RUN.finditer(line):
        if _ends_sentence(line, start, run):
            sentences.append(line[start : run.end()].strip())
            start = run.end()
    sentences.append(line[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(line: str, start: int, run: re.Match[str]) -> bool:
    if CHINESE_END.search(run[1]):
        # The mark is part of a title, and the sentence continues: 《哦，街车！》.
        return "》" not in run[1]
    after = line[run.end() : run.end() + 1]
    if not run[2] or not after:
        return False
    if after not in OPENING and (not after.isalnum() or after.islower()):
        return False
    return run[1] != "." or not _is_abbreviation(line, start, run.start(), after)


def _is_abbreviation(line: str, start: int, dot: int, after: str) -> bool:
    word = LAST_WORD.search(line[max(start, dot - LOOK_BACK) : dot])
    last = word[0] if word else ""
    if DOTTED.match(last) or (len(last) == 1 and last.isupper()):
        return True
    if last.isdigit():
        # "1. Introduction" is one sentence, "in 1999. The" is two.
        return len(last) <= 3 and not line[start : dot - len(last)].strip()
    last = last.lower()
    return last in ABBREVIATIONS or (last in BEFORE_NUMBER and after.isdigit())
