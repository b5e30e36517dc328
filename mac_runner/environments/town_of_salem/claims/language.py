"""The language of claims: names and roles marked in a text, the speaker's own words in it, and patterns of sentences.

Each name of a player or a role is replaced by one private character (U+E000 on), which a text cannot bring along. So
patterns need not know which names are in play, and reading a name costs one character. Quotations, the reported words
of others, questions and what is said under a condition are blanked character by character, so a place in the result is
a place in the marked text.

The patterns match marked text, so they are the same for all games. Named groups: `about` and `names` hold players,
`roles` roles, `not` reverses the meaning, and a group in capitals is named after what is said (`Says`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NamedTuple

from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles

_FIRST_ROLE = 0xE000
_FIRST_NAME = 0xE100
_LAST = 0xE8FF
NAME = f"[{chr(_FIRST_NAME)}-{chr(_LAST)}]"
ROLE = f"[{chr(_FIRST_ROLE)}-{chr(_FIRST_NAME - 1)}](?!'s)"
"""One role, but not its belongings: `the Sheriff's friend`."""
HAS_ROLE = re.compile(ROLE)
HAS_NAME = re.compile(NAME)
BLANK = "\x00"
"""Replaces what is left out; no pattern matches it."""

_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', BLANK: " "})
_PRIVATE = re.compile(f"[{chr(_FIRST_ROLE)}-{chr(_LAST)}]")


@follows_roles
@cache
def _role_names() -> tuple[str, ...]:
    return tuple(role.name for role in ROLES.values())


@dataclass(frozen=True, slots=True)
class Marked:
    """A text with its names and roles marked.

    `ends` are the places after each mark, `shifts` how much further on the same place is in the text that was marked.
    """

    text: str
    ends: tuple[int, ...]
    shifts: tuple[int, ...]

    def place(self, index: int) -> int:
        """The place in the original text of the character at `index`."""
        before = bisect_right(self.ends, index)
        return index + (self.shifts[before - 1] if before else 0)


def names_in(part: str, players: tuple[str, ...]) -> tuple[str, ...]:
    """The players named in `part` of a marked text, in order, each once."""
    marks = (ord(mark) - _FIRST_NAME for mark in part)
    return tuple(dict.fromkeys(players[mark] for mark in marks if 0 <= mark < len(players)))


def roles_in(part: str) -> tuple[str, ...]:
    """The roles named in `part` of a marked text, in order, each once."""
    marks = (ord(mark) - _FIRST_ROLE for mark in part)
    roles = _role_names()
    return tuple(dict.fromkeys(roles[mark] for mark in marks if 0 <= mark < len(roles)))


def mark(text: str, players: tuple[str, ...]) -> Marked:
    """Mark the players, written as they are or in capitals, and the roles, by any of their names."""
    plain = _PRIVATE.sub(BLANK, text.translate(_STRAIGHT))
    words, marks = _words(players)
    parts: list[str] = []
    ends: list[int] = []
    shifts: list[int] = []
    done = made = 0
    for found in words.finditer(plain):
        made += found.start() - done + 1
        parts += (plain[done : found.start()], marks.get(found.group()) or marks[found.group().lower()])
        done = found.end()
        ends.append(made)
        shifts.append(done - made)
    return Marked("".join((*parts, plain[done:])), tuple(ends), tuple(shifts))


@follows_roles
@lru_cache(maxsize=64)
def _words(players: tuple[str, ...]) -> tuple[re.Pattern[str], Mapping[str, str]]:
    """Every word that names a role or a player, as a pattern, and the character for each."""
    any_case: dict[str, str] = {}
    exact: dict[str, str] = {}
    for index, role in enumerate(ROLES.values()):
        name = role.name.lower()
        for word in (name, name.replace(" ", "-"), *role.short_names):
            # Short words in capitals count as such only.
            (exact if word.isupper() else any_case)[word] = chr(_FIRST_ROLE + index)
    exact |= {form: chr(_FIRST_NAME + i) for i, name in enumerate(players) for form in (name.upper(), name)}
    pattern = re.compile(rf"(?<![\w-])(?:(?-i:{_any(exact)})|{_any(any_case)})(?!\w|-\w)", re.I | re.A)
    return pattern, any_case | exact


def _any(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))


# Whose words they are.

# Quotes around all of it are the writer's habit, and quotes around a word or two are stress.
_QUOTE = re.compile(r'"[^"]*"')
_STRESSED = re.compile(r'"\s*[\w\' -]{1,20}"')
# The beginning of a sentence that goes on about the one just named.
CONTINUING = r"(?:he|she|they|both|the result|results?|it|my result|came|turns? out|nobody|no one)\b"
_GOES_ON = re.compile(rf"\s*{CONTINUING}", re.I)
_END = re.compile(r"[.!?;\n]+")
_ASKING = (
    r"(?:why|who|whom|whose|what|how|when|where|which|do|does|did|is|are|am|was|were|can|could|would|will|should|have|has"
    r"|right|ok|okay|agreed|isn't|aren't|don't|doesn't|didn't|won't|shouldn't|no|yes|any|anyone|anybody|correct)\b"
)
_QUESTION_TAIL = re.compile(rf"(?:,|:|\s[-–—])\s*(?:(?:and|so|but|or)\s+)?(?={_ASKING})", re.I)
_STARTS_ASKING = re.compile(rf"\s*(?:(?:and|so|but|or|well|ok|okay)\b,?\s+)*{_ASKING}", re.I)
# A list of roles after `could be` is a result, not a condition.
_CONDITION = re.compile(
    r"\b(?:if|unless|suppose|supposing|assuming|assume|imagine|pretend\w*|whether|hypothetically|maybe|perhaps|"
    r"possibly|wish|lest|in case"
    r"|(?:might|may|could|would)(?: (?:also|well|just|easily))? (?:not )?be"
    rf"(?! (?:either )?(?:an? |the )?{ROLE}(?:,| or)))\b",
    re.I,
)
# Here and below a run of white space is entered at its beginning only, or it costs the square of its length.
_TURN = re.compile(r"(?:[,:]|(?<!\s))\s*\b(?:but|however|although|though|yet|whereas|nevertheless|regardless)\b", re.I)

_SAYING = (
    r"(?:sa(?:y|ys|id|ying)|claim(?:s|ed|ing)?|t(?:ell|ells|old|elling)|th(?:ink|inks|ought|inking)|believ\w+|accus\w+"
    r"|suspect(?:s|ed|ing)?|argu\w+|insist\w*|sw(?:ear|ears|ore|earing)|stat(?:e|es|ed|ing)|suggest\w*|voted|votes|voting"
    r"|want(?:s|ed|ing)?|push(?:es|ed|ing)|defend\w*|call(?:s|ed|ing)?|ask\w*|report(?:s|ed)|mention\w*|whisper\w*"
    r"|den(?:y|ies|ied)|admit\w*|confess\w*|wrote|writes|announc\w+|read|reads|trust(?:s|ed)|reveal(?:s|ed)|implie[sd]"
    r"|hint(?:s|ed)|found(?= (?:that|out)))"
)
_HELPING = (
    r"(?:(?:\w+ly|just|also|already|even|then|has|have|had|is|was|are|were|been|being|did|does|do|not|never|keeps?|kept"
    r"|didn't|doesn't|don't|who|who's|who has|first|now|went|and|back|you|to|me|us)\s+){0,6}"
)


_SOMEBODY = (
    rf"(?:{NAME}|he|she|they|you|it|who|everyone|everybody|someone|somebody|people|some|others|nobody|no one"
    rf"|none of you|one of you|the (?:town|mafia|others|will|note|dead|deceased|accused)|(?:the|our|an?) {ROLE}"
    r"|(?:his|her|their) (?:will|note|words))"
)
_RUMOUR = r"\b(?:I(?: have|'ve)? (?:heard|hear|was told|read)|according to|rumou?r has it|supposedly|allegedly)\b"
# Another player who says, thinks or votes: what follows is theirs.
_REPORTED = re.compile(rf"{_RUMOUR}|(?<![\w-]){_SOMEBODY}\s+{_HELPING}{_SAYING}\b", re.I)
_AGAIN = re.compile(r",\s*(?:and\s+|so\s+|while\s+)(?=I\b(?!(?:\s+\w+){0,2}\s+(?:said|told)))", re.I)


class Part(NamedTuple):
    """A passage of a text or a sentence of a passage, and where it begins in that."""

    start: int
    text: str


def passages(text: str) -> list[Part]:
    """The passages of a marked text, quotations blanked: a sentence and those after it that go on with it."""
    found: list[Part] = []
    is_open = False
    for start, sentence in _sentences(_without_quotes(text)):
        if found and (is_open or _GOES_ON.match(sentence)):
            found[-1] = Part(found[-1].start, found[-1].text + sentence)
        else:
            found.append(Part(start, sentence))
        is_open = sentence.endswith(";")
    return found


def own_words(passage: str) -> list[Part]:
    """The sentences of a passage, blanked where they are not their speaker's own or not in earnest."""
    return [
        Part(start, "".join(map(_in_earnest, _clauses(_without_question(said))))) for start, said in _sentences(passage)
    ]


def _without_quotes(text: str) -> str:
    """Quotations blanked, those of a word or two and one around the whole excepted."""
    inner = text.strip()
    if inner.startswith('"') and inner.endswith('"') and inner.count('"') == 2:
        return text
    return _QUOTE.sub(lambda found: found[0] if _STRESSED.fullmatch(found[0]) else BLANK * len(found[0]), text)


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    """Each sentence with the mark that ends it, and its place; `1.` in a list ends none."""
    start = 0
    for end in _END.finditer(text):
        if end.group() == "." and end.start() > start and text[end.start() - 1].isdecimal():
            continue
        yield start, text[start : end.end()]
        start = end.end()
    if start < len(text):
        yield start, text[start:]


def _without_question(sentence: str) -> str:
    """The statement before a question: `I am the Doctor, why would I lie?`"""
    if "?" not in sentence[-3:]:
        return sentence
    tail = _QUESTION_TAIL.search(sentence)
    start = 0 if tail is None or _STARTS_ASKING.match(sentence) else tail.start()
    return _blanked(sentence, start, len(sentence))


def _blanked(text: str, start: int, end: int) -> str:
    return text[:start] + BLANK * (end - start) + text[end:]


def _clauses(sentence: str) -> Iterator[str]:
    """The parts of a sentence; a `but` turns from the words of others back to the speaker."""
    start = 0
    for turn in _TURN.finditer(sentence):
        yield sentence[start : turn.start()]
        start = turn.start()
    yield sentence[start:]


def _in_earnest(clause: str) -> str:
    condition = _CONDITION.search(clause)
    if condition is not None:
        clause = _blanked(clause, condition.start(), len(clause))
    reported = _REPORTED.search(clause)
    if reported is None:
        return clause
    # The speaker's own words go on with `, and I …`, but not after a colon.
    again = _AGAIN.search(clause, reported.end())
    is_back = again is not None and ":" not in clause[reported.end() : again.start()]
    return _blanked(clause, reported.start(), again.start() if again and is_back else len(clause))


# The sentences in which claims are made.

# What may be repeated is bounded, so that it cannot cost more than its square. Possessive repetition and atomic groups
# would do too, but Python before 3.11.5 matches them wrongly.
_THE = (
    r"(?:(?:the|an?|your|our|this town's|town's)\s+)?"
    r"(?:(?:real|true|only|actual|one|revealed|original|simple|humble|mere)\s+){0,4}"
)
_ROLE_LIST = rf"{_THE}{ROLE}(?:\s*(?:,\s*or\b|,\s*and\b|,|/|\bor\b)\s*{_THE}{ROLE})+"
# The names in a row are bounded, and so is the cost of a list.
_NAMES = rf"{NAME}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+|\s*&\s*|\s*/\s*){NAME}){{0,14}}"
_I_AM = r"\bI(?:'m| am|m)"
_HOW = (
    r"(?:\s+(?:very|more|really|definitely|clearly|obviously|probably|likely|most|almost|certainly|surely|so|too|quite|just"
    r"|actually|still|also|all|both|indeed|100%|highly|extremely|simply|truly|absolutely|pretty|rather|somewhat|now|only"
    r"|an? (?:loyal|regular|simple|proud)"
    r"|in fact|of course|a bit|for sure|no doubt|\w+ly)\b){0,4}"
)
_IS = (
    r"(?:\s*'s|\s*'re|\s*=|\s+(?:(?:is|was|were|has been|have been) (?:found|proven|shown|confirmed)(?: to be| as)?"
    r"|is|are|was|were|has been|have been|must be|has to be|have to be|needs to be|seems? to be|appears? to be|seems?"
    r"|appears?|looks?(?: like)?|sounds?(?: like)?|feels?(?: like)?|to be|being"
    r"|(?:is|are|was|were|has been|have been|keeps?) (?:acting|being|looking|behaving|sounding)))"
)
_IS_NOT = (
    r"(?:\s+(?:isn't|aren't|wasn't|weren't|ain't|cannot be|can't be|doesn't seem|doesn't look|doesn't sound)"
    rf"|{_IS}{_HOW}\s+(?:not|never|no longer|neither))"
)
_NOT_OF = r"(?!\s+of\b)(?!['’]s\b)(?!-)(?!\s+(?:friends?|partners?|targets?|claim\w*|bait|hunters?|wants?|players?)\b)"
_MAFIA = (
    r"(?P<MAFIA>(?:(?:in|with|part of|one of|an? members? of|members? of|of|from) )?(?:the |an? )?"
    rf"(?:mafia|mafias|maf)(?: members?)?\b){_NOT_OF}"
)
_EVIL = (
    r"(?P<EVIL>(?:an? |the |our |pure |my )?(?:(?:top|main|prime|biggest|number one|first) )?(?:evil|scum|scummy|guilty"
    r"|bad|dangerous|killers?|murderers?|traitors?|enem(?:y|ies)|impostors?|threat|suspicious|suspect|suspects|sus|shady"
    rf"|fishy|untrustworthy|lying|liars?|frauds?|faking)\b){_NOT_OF}"
)
_TOWN = (
    r"(?P<TOWN>(?:(?:with|part of|one of|an? members? of|members? of|of|on|pro|confirmed|verified|proven) )*"
    rf"(?:the |an? )?(?:town|townies?|townspersons?|townsfolk|villagers?|town members?)\b){_NOT_OF}"
)
_INNOCENT = (
    r"(?P<NOT_EVIL>(?:an? )?(?:innocent|clear(?:ed)?|clean|trustworthy|honest|good|safe|legit(?:imate)?|not guilty"
    r"|trusted|confirmed|telling the truth|one of us|on our side)"
    r"(?! (?:mafia|evil|to(?! me)|about|on|for|that|question|point))\b)"
)
# Between a name and its finding: the rest of the sentence, and the beginning of a next one about it.
_BEFORE_FINDING = rf"(?:[^.!?\n\x00]|[.!]\s+(?={CONTINUING}))"
_NIGHT = r"\b(?:N|Night|Nights)\s*\d{1,2}\b[\s:\-–—).=,>]*"
_CHECKED = (
    r"(?:investigated|checked(?: on| out)?|interrogated|looked (?:into|at)|inspected|questioned|examined|scanned"
    r"|visited|searched|sheriffed|invested|tested|read)"
)
_WATCHED = r"(?:watched|was watching|looked at|observed|camped|was at|kept watch (?:on|over))"
_HEALED = r"(?:healed|protected|guarded|saved|treated|doctored|was (?:healing|protecting|guarding))"
_HOUSE = r"(?:'s?(?: (?:house|home|place|door))?)?"
_BEFALL = (
    r"(?:(?P<BLOCKED>role-?\s?blocked|blocked|kept busy|distracted)|(?P<ATTACKED>attacked|healed|saved)"
    r"|(?P<CONTROLLED>controlled|witched|bewitched)|(?P<TRANSPORTED>transported|swapped|moved)|(?P<DOUSED>doused)"
    r"|(?P<JAILED>jailed|in jail)|(?P<BLACKMAILED>blackmailed))\b"
)


_OWN_ROLE = rf"(?P<roles>{ROLE})(?!\s+(?:here to|claims?|claimed|said|says|players?|is\b|was\b|did\b))"
_OTHER_ROLE = rf"{_THE}(?P<roles>{ROLE})(?!\s+(?:claim\w*|here|targets?)\b)(?!\s*(?:,|/)?\s*or\b)"
_GAP = rf"(?:(?!{NAME}){_BEFORE_FINDING}){{0,80}}?"
_SHORT_GAP = rf"(?:(?!{NAME}){_BEFORE_FINDING}){{0,40}}?"
_NO_VISITOR = r"nobody|no one|no-one|no visitors"
_FINDING = (
    r"(?:(?P<NOT_SUSPICIOUS>(?:not|isn't|wasn't|weren't|aren't|nothing|non|no)[\s-](?:at all )?"
    r"(?:suspicious|sus\b|suspicion)"
    r"|innocent|clean\b|clear(?:ed)?\b|\bNS\b|not (?:a member of the |part of the )?mafia)"
    r"|(?P<MAFIA>(?:an? )?member of the mafia|\bmafia\b)"
    r"|(?P<SUSPICIOUS>suspicious|\bsus\b|guilty|evil)"
    rf"|(?P<roles>(?:{_ROLE_LIST}|{_THE}{ROLE})))"
)
_ABOUT = rf"(?P<about>{_NAMES}|\b(?:he|she|they)\b)(?:,? you\b)?"
_ALONE = r"(?!\s+(?:is|are|was|were|and I|has|did|could|might|must|will|to be|isn't|who)\b)(?!')"
_ON_ITS_OWN = r"(?! (?:of|investigative|protective|support|killing)\b)"
_AGAINST = (
    r"(?:\bvot(?:e|ing|ed)(?!\s+innocent)(?:\s+(?:for|on|against|out|up|off|to (?:lynch|hang)|guilty"
    r"(?: on| for)?))*"
    r"|\blynch(?:ing)?|\bhang(?:ing)?|\bexecut(?:e|ing)|\baccus(?:e|ing)|\bsuspect(?:ing)?|\bnominat(?:e|ing)"
    r"|\bdistrust(?:ing)?|\b(?:do not|don't|cannot|can't|never|wouldn't|would not)\s+(?:trust|believe)|\bdoubt"
    r"|\bpush(?:ing)? for|\bmy vote (?:is|goes|stays)(?: still)? (?:on|for|to|with|against)|\bsuspicious of"
    r"|\bwary of|\bget rid of|\beliminat(?:e|ing)|\bsuspicions? (?:is|are|falls?) on|\bpoint(?:s|ing)? (?:to|at)"
    r"|\bmy vote:?|\bmy (?:main |top |prime )?suspects? (?:is|are|remains?))"
)
_PERCENT = r"(?<![\d.])(?P<percent>100|\d{1,2})(?:\.\d+)?\s?(?:%|percent\b|per cent\b)"
_SURE = (
    r"(?:\s+(?:sure|certain|confident|convinced|positive|(?:chance|probability|likelihood|likely|confidence)))?"
    r"(?:\s+(?:that|of))?"
)
_IS_ESTIMATED = r"(?:\s+(?:is|being|to be)|'s)(?P<not>\s+not|n't)?"
_ESTIMATED = (
    r"\s+(?:(?:an?|the|with|of|in|part of|a member of)\s+){0,3}"
    rf"(?:(?P<MAFIA>mafia|maf)\b|(?P<EVIL>evil|guilty|scum|bad)\b|(?P<TOWN>town|townie|townsperson)\b"
    rf"|(?P<NOT_EVIL>innocent|good|clean)\b|(?P<roles>{ROLE}))"
)

_CLAIMS: Final[Mapping[str, tuple[str, ...]]] = {
    "role": (
        rf"(?:{_I_AM}|\bI have been|\bI've been|\bI(?P<WAS_ROLE> was)){_HOW}\s+{_THE}{_OWN_ROLE}",
        rf"\bmy (?:true |real |actual )?role (?:is|(?P<WAS_ROLE>was)){_HOW}\s+{_THE}{_OWN_ROLE}",
        rf"\b(?:my )?role\s*[:=-]\s*{_THE}{_OWN_ROLE}",
        rf"\bI(?:'m| am|'ve been| have been)?(?: \w+ly| just| also| now| must)* claim(?:ing|ed)?\s*:?"
        rf"\s+(?:to be |as |my role as )?{_THE}{_OWN_ROLE}",
        rf"\bI (?:got|drew|rolled|was dealt|was given|hold|have)\s+{_THE}{_OWN_ROLE}",
        rf"(?:^|[,;:–—-])\s*(?:the |a )?{_OWN_ROLE}\s+here\b",
        rf"(?:\b(?:speaking )?as|\bbeing)\s+{_THE}{_OWN_ROLE}[^.,\x00]{{0,25}},?\s+(?:I\b|my\b|let me\b)",
        rf"\bI,?\s+(?!(?:see|view|regard|treat|trust|know|accept|read|want|have|had)\b)"
        rf"(?:[^\s.,\x00]+\s+){{0,6}}?as\s+(?:the|your|our|this town's)\s+{_OWN_ROLE}",
        rf"(?:^|[.:]|(?<!\n)\n)\s*(?:the )?{_OWN_ROLE}(?:'s)?\s+(?:will|log|notes|results|report)\b",
        rf"\bI(?:, the| the)\s+{_OWN_ROLE}",
    ),
    # These two run over a whole passage, because a result may follow in the sentence after the name; the others over
    # one sentence at a time.
    "befallen": (rf"\bI\s+(?:was|got|have been|had been|'ve been)\s+(?:just |also )?{_BEFALL}",),
    "result": (
        # What befell a player.
        rf"\bmy (?:target|patient|ward),?\s+(?P<about>{NAME}),?\s+(?:was|got|had been|has been)\s+"
        r"(?P<ATTACKED>attacked)",
        rf"\bI(?: have|'ve)?\s+{_HEALED}\s+(?P<about>{NAME}){_GAP}(?:was|were|got|been)\s+(?P<ATTACKED>attacked)",
        # Visits.
        rf"(?P<about>{NAME}){_HOUSE}\s+(?:was|got)\s+visited\s+(?P<VISITED_BY>by)\s+(?P<names>{_NAMES}|{_NO_VISITOR})",
        rf"\bI saw\s+(?P<names>{_NAMES})\s+"
        rf"(?P<VISITED_BY>visit(?:ing)?|go(?:ing)? to|enter(?:ing)?|leav(?:e|ing)|come to|at)\s+(?P<about>{NAME})",
        rf"\bI(?: have|'ve)?\s+{_WATCHED}\s+"
        rf"(?P<about>{NAME}){_HOUSE}{_GAP}(?:saw |visited by |visitors?:? |it was )?(?P<names>{_NAMES}|{_NO_VISITOR})"
        rf"(?:\s+(?P<VISITED_BY>visit(?:ed|ing)?|came|come|went|entered|entering|there|showed|was|were|$))",
        rf"\bI(?: have|'ve)?\s+{_WATCHED}\s+"
        rf"(?P<about>{NAME}){_HOUSE}{_GAP}(?P<VISITED_BY>saw|visited by|visitors?(?: were| was)?:?)\s+"
        rf"(?P<names>{_NAMES}|{_NO_VISITOR})",
        rf"\bthe mafia\s+(?P<VISITED_BY_MAFIA>visited|went to)\s+(?P<about>{_NAMES})",
        rf"(?P<names>{_NAMES}|{_NO_VISITOR})\s+(?P<VISITED_BY>visited)\s+(?P<about>{NAME})",
        # What a player was found to be.
        rf"\bI found(?: out)?(?: that)?\s+(?P<about>{_NAMES})\s+(?:is|are|was|were|to be){_HOW}\s+{_FINDING}",
        rf"\bI(?: have|'ve|'d| had)?(?: \w+ly| also| then| just| already)*\s+{_CHECKED}\s+(?P<about>{_NAMES}){_GAP}"
        rf"{_FINDING}",
        rf"{_NIGHT}(?:I )?(?:{_CHECKED}\s+)?(?P<about>{NAME}){_SHORT_GAP}{_FINDING}",
        rf"\bmy (?:results?|findings?|investigations?|reports?|checks?|target)\s*"
        rf"(?:(?:on|of|for|about|last night|is|was)\s+|[,:]\s*)*(?P<about>{NAME}){_GAP}{_FINDING}",
        rf"\bI(?: have|'ve)?\s+(?:got|get|have|received)\s+an?\s+{_FINDING}"
        rf"(?: results?| reports?| findings?)?\s+(?:on|for|about)\s+(?P<about>{_NAMES})",
        rf"(?P<about>{_NAMES})\s+(?:came|comes|turned|turns|showed|shows)\s+(?:up|back|out)(?: as| to be)*{_HOW}\s+"
        rf"{_FINDING}",
        rf"(?P<about>{NAME})\s*(?:is|could be|can be|must be|may be|might be|:|=|-)\s*(?:either |one of )?"
        rf"(?P<roles>{_THE}{ROLE}\s*(?:,|/|\bor\b)\s*{_ROLE_LIST})",
    ),
    # For speakers who claim a role that finds suspicion: their `Bob is not suspicious` is a result.
    "verdict": (
        rf"(?P<about>{_NAMES})\s+(?:is|are|was|were)\s+"
        r"(?:(?P<NOT_SUSPICIOUS>not suspicious)|(?P<SUSPICIOUS>suspicious))",
    ),
    "oneself": (rf"{_I_AM}{_HOW}\s+(?:(?P<not>not)\s+)?(?:{_MAFIA}|{_EVIL}|{_TOWN}|(?P<NOT_EVIL>innocent))(?! about)",),
    "others": (
        rf"{_ABOUT}{_IS_NOT}{_HOW}\s+(?:{_MAFIA}|{_EVIL}|{_TOWN}{_ON_ITS_OWN}|{_INNOCENT})(?P<not>)",
        rf"{_ABOUT}{_IS}{_HOW}\s+(?:{_MAFIA}|{_EVIL}|{_TOWN}{_ON_ITS_OWN}|{_INNOCENT}|{_OTHER_ROLE})",
        rf"(?P<about>{_NAMES})\s+(?P<EVIL>did it|lied|lies|killed|murdered|attacked|is behind)\b",
        rf"(?P<about>{_NAMES})\s+(?P<EVIL>(?:must|should|has to|have to|needs? to|deserves? to)\s+(?:go|die|hang"
        r"|be\s+(?:lynched|hanged|hung|executed|voted|eliminated|killed)))\b",
        rf"(?P<EVIL>\bput)\s+(?P<about>{_NAMES})\s+on\s+(?:the\s+)?(?:trial|stand)\b",
        rf"\bit(?:'s| is| was| must be| has to be){_HOW}\s+(?P<EVIL>)(?P<about>{_NAMES})(?!\s+(?:who|that)\b)(?!')",
        rf"(?P<EVIL>{_AGAINST})\s+(?P<about>{_NAMES}){_ALONE}",
        r"(?P<NOT_EVIL>\b(?:trust|believe(?: in)?|vouch(?:ing)? for|defend(?:ing)?|can confirm|confirm"
        rf"|clear(?:ing)?|vot(?:e|ing|ed) innocent(?: on| for)?|stand(?:ing)? (?:by|with)|spare|acquit))"
        rf"\s+(?P<about>{_NAMES}){_ALONE}",
    ),
    # Probabilities that are stated.
    "estimate": (
        # 70% sure that Abel is Mafia; a 70% chance of Abel being evil.
        rf"{_PERCENT}{_SURE}\s+(?P<about>{NAME}){_IS_ESTIMATED}{_ESTIMATED}",
        # Abel is 70% Mafia; Abel: 70% likely to be evil.
        rf"(?P<about>{NAME})\s*(?:\bis|:|=|-|\bat)\s*(?:(?:about|around|roughly|at)\s+)?{_PERCENT}"
        rf"(?:\s+(?:likely|certain|sure))?(?:\s+to be)?(?P<not>\s+not)?{_ESTIMATED}",
        # Abel is Mafia (70%); Abel is Mafia, 70% sure.
        rf"(?P<about>{NAME}){_IS_ESTIMATED}{_ESTIMATED}\s*[(,]\s*(?:(?:about|at|with|I am|I'm)\s+)?{_PERCENT}",
    ),
}


@cache
def patterns(of: str) -> tuple[re.Pattern[str], ...]:
    """The patterns of one kind of claim, in the order in which they are tried; compiled when first asked for."""
    return tuple(re.compile(pattern, re.I) for pattern in _CLAIMS[of])
