"""Chinese. Each table has the English text and its translation.

In a text ``{}`` stands for any value. In a translation ``{}`` is the next value and ``{1}`` the
value of that number, counted from 0; ``{~}`` and ``{1~}`` are values that are translated too. In a
text of few letters a value is a single word, unless it is written ``{*}`` or ``{~}``.
"""

from ownbert.language.zh.cards import CARDS
from ownbert.language.zh.lines import LINES
from ownbert.language.zh.messages import MESSAGES, USAGE
from ownbert.language.zh.overview import OVERVIEW
from ownbert.language.zh.pages import PAGES
from ownbert.language.zh.report import REPORT
from ownbert.language.zh.words import WORDS

TEXTS = {**WORDS, **MESSAGES, **USAGE, **LINES, **REPORT, **CARDS, **PAGES, **OVERVIEW}
