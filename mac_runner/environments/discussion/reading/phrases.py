"""Whether a choice that an answer mentions is only a part of a longer phrase: `All Black men driving a Toyota Prius`.

What follows the choice decides. A clause (`did it`, `was late`), a reason and a restatement of the question leave its
meaning alone. A participle, a relative clause, a preposition or a noun narrows it, so the answer may mean somebody
else. In doubt the phrase counts as narrower: its writer is then asked again, and no answer is invented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from mac_runner.environments.discussion.reading.words import ARTICLES, words

_TOKEN: Final = re.compile(r"[^\W_]+|[,.;:!?()\[\]\"“”\n*]|(?<=\s)[\-–—]+(?=\s)|—")

_AUXILIARIES: Final = frozenset(
    words(
        "is are was were be been am has have had do does did will would can could should shall may might must "
        "seems seem seemed appears appear appeared remains"
    )
)
_VERBS: Final = frozenset(
    words(
        "remain need want fit match look get go deserve qualify "
        "got went made took said felt knew found left held caught lost met paid put ran saw sat sent set showed "
        "slept spent spoke stood stole taught thought told understood woke won wore wrote began broke brought "
        "bought built came chose cut drank drew drove ate fell fought flew forgot forgave gave grew hid hit hurt "
        "kept led lay lent let lied quit read rode rose sang shot struck swore threw hurried"
    )
)
_DETERMINERS: Final = frozenset(words("this these those my your his her their our its such")) | ARTICLES
_PRONOUNS: Final = frozenset(words("i it he she they we you there himself herself themselves itself"))
_JOINS: Final = frozenset(
    words(
        "given considering judging according as so then therefore thus hence because since if unless when while "
        "whereas after before until though although once"
    )
)
_ADVERBS: Final = frozenset(
    words(
        "really clearly definitely certainly probably likely most obviously surely perhaps maybe also too here "
        "again simply just only actually alone instead still though ultimately apparently presumably evidently "
        "indeed now himself herself themselves both all clearly always never often usually generally first please "
        "final finally overall thanks"
    )
)
_RELATIVES: Final = frozenset(words("who which that whose whom where"))
_PREPOSITIONS: Final = frozenset(
    words(
        "from of in with at on by near under over within without inside outside between among about across along "
        "around behind beside beyond during into onto off through toward towards upon to against above below via "
        "like unlike per based regarding concerning for"
    )
)
_PARTICIPLES: Final = frozenset(
    words(
        "named called aged born dressed titled accused suspected known seen driven worn shown taken hidden done "
        "drawn written owned employed located living involved mentioned described"
    )
)
_FUNCTION: Final = (
    _AUXILIARIES
    | _DETERMINERS
    | _PRONOUNS
    | _RELATIVES
    | _PREPOSITIONS
    | _ADVERBS
    | _JOINS
    | frozenset(words("and or what how me us them him one not more than out up down no any some"))
)
_TALK: Final = frozenset(
    words(
        "context text passage story case question information info scenario situation example opinion view mind "
        "course fact paragraph description statement sentence evidence answer choice option likelihood "
        "probability general particular know known told say said stated mentioned described read see end my "
        "judgement judgment understanding knowledge available provided details two people persons options choices "
        "first place far long shot least last balance precise exact honest fair sure certain lack now obvious "
        "reasons reason"
    )
)
"""Words about the question as a text, as in `from the context` and `in my opinion`."""
_QUANTIFIERS: Final = frozenset(words("all every each any some most many few several only both no"))
_FIXED: Final = frozenset(words("yes no true false maybe agree disagree"))
_BEFORE_OF: Final = frozenset(
    words(
        "favor favour choice answer case think thinking guess name that option side instead verdict support sure "
        "because certain out one be is"
    )
)
_BEFORE_LIKE: Final = frozenset(words("looks look seems seem sounds sound feels feel appears appear"))
_BEFORE_TO: Final = frozenset(words("similar next related close married belongs compared adjacent contrary"))


def phrase_tokens(text: str) -> list[str]:
    """The words of a folded text and the marks that end a phrase."""
    return _TOKEN.findall(text)


def is_word(token: str) -> bool:
    """Whether a token is a word."""
    return token[0].isalnum()


def stems(texts: Iterable[str]) -> frozenset[str]:
    """The words of texts without their endings."""
    return frozenset(_stem(word) for text in texts for word in words(text))


def may_be_narrowed(choice: Sequence[str]) -> bool:
    """Whether a choice names somebody or something, unlike a yes or no and a whole statement."""
    said = set(choice)
    return not said <= _FIXED and (not said & _AUXILIARIES or bool(said & _RELATIVES))


def is_general(choice: Sequence[str]) -> bool:
    """Whether a choice speaks of all or many, which any further word can make fewer."""
    return bool(choice) and choice[0] in _QUANTIFIERS


def is_within(
    before: Sequence[str], choice: Sequence[str], after: Sequence[str], *, asked: frozenset[str], is_strict: bool
) -> bool:
    """Whether a choice is a part of a longer phrase, by the words around it.

    `asked` are the stems of the question. Repeating them is a restatement, but for a choice that is read strictly.
    """
    return _is_attached(before) or _narrows(choice, after, asked, is_strict=is_strict)


def _is_attached(before: Sequence[str]) -> bool:
    """Whether the choice only places somebody else: `the friend of the grandmother`."""
    said = [word for word in before if word not in _DETERMINERS]
    last, previous = (said[-1] if said else ""), (said[-2] if len(said) > 1 else "")
    match last:
        case "of":
            return previous not in _BEFORE_OF and previous != ""
        case "like":
            return previous not in _BEFORE_LIKE
        case "to":
            return previous in _BEFORE_TO
        case "near" | "beside" | "behind" | "than":
            return True
        case _:
            return False


def _narrows(choice: Sequence[str], after: Sequence[str], asked: frozenset[str], *, is_strict: bool) -> bool:
    rest = list(after)
    while rest and rest[0] in _ADVERBS:
        rest.pop(0)
    if not rest:
        return False
    first, following = rest[0], rest[1] if len(rest) > 1 else ""
    if first in ("and", "or"):
        return not (
            following in _AUXILIARIES | _VERBS | _PRONOUNS | _JOINS | {"that", "this"} or following[-2:] == "ed"
        )
    if (first, following) == ("based", "on"):
        return False
    if first == "that" and (not following or following in _AUXILIARIES) and not is_strict:
        return False
    if first in _AUXILIARIES | _VERBS | _DETERMINERS | _PRONOUNS | _JOINS:
        return False
    content = [word for word in rest if word not in _FUNCTION]
    if first in _PREPOSITIONS and all(word in _TALK for word in content):
        return False
    if not is_strict and all(_stem(word) in asked or word in _TALK for word in content):
        return False
    if first in _RELATIVES | _PREPOSITIONS | _PARTICIPLES or first.endswith("ing"):
        return True
    if first.endswith("ed"):
        return is_strict or following in _PREPOSITIONS & {"by", "of", "as", "near", "from"}
    is_verb = first.endswith("s") and not first.endswith("ss")
    is_plural = choice[-1].endswith("s") or choice[-1] in ("men", "women", "people", "children")
    return not is_verb or is_plural


def _stem(word: str) -> str:
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word[: -len(ending)]
    return word
