"""A small contrastive test set: German sentences whose verb has the wrong number.

After the subject-verb agreement task of Lingeval97 (Sennrich 2017; zhang2020, Figure 5), which has
35,105 pairs of parsed news sentences. Here a narrow rule replaces the parser. It rarely errs, but
covers only sentences like captions of pictures: see ``find_verb``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

#: First words that determine the subject's number. (``Die`` does not.)
SINGULAR = frozenset("Ein Eine Der Das Dieser Dieses Jeder Jede Jedes".split())
PLURAL = frozenset(
    "Zwei Drei Vier Fünf Sechs Sieben Acht Neun Zehn Mehrere Viele Einige Beide".split()
)

#: Subjects after which speakers also use the plural.
COLLECTIVE = ("gruppe", "menge", "reihe", "anzahl", "paar", "team", "familie", "teil", "schar")

#: Third person, present tense: singular and plural.
VERBS = dict(
    pair.split("/")
    for pair in """
    ist/sind hat/haben wird/werden kann/können steht/stehen sitzt/sitzen geht/gehen läuft/laufen
    liegt/liegen spielt/spielen hält/halten trägt/tragen springt/springen fährt/fahren
    schaut/schauen blickt/blicken sieht/sehen macht/machen schläft/schlafen arbeitet/arbeiten
    isst/essen trinkt/trinken liest/lesen lächelt/lächeln lacht/lachen singt/singen tanzt/tanzen
    klettert/klettern rennt/rennen wartet/warten zeigt/zeigen wirft/werfen fliegt/fliegen
    schwimmt/schwimmen kocht/kochen führt/führen benutzt/benutzen bereitet/bereiten posiert/posieren
    unterhält/unterhalten versucht/versuchen genießt/genießen repariert/reparieren
    """.split()
)
OTHER_NUMBER = VERBS | {plural: singular for singular, plural in VERBS.items()}

#: Between subject and verb, these may introduce another subject.
JOINTS = frozenset(", ; : - – und oder sowie".split())


@dataclass(frozen=True)
class Pair:
    """A sentence and its contrast."""

    sentence: int  # its number in the test set
    right: str  # the reference
    wrong: str  # the reference with the verb in the other number
    distance: int  # tokens from the subject's noun to the verb; 1: next to each other


def find_verb(tokens: Sequence[str]) -> tuple[int, int] | None:
    """Find a verb that agrees with a subject whose number is known.

    The rule: the first word determines the number; a noun (with a capital) that is no collective
    follows, then, before any comma or ``und``, a verb of the list in that number.

    Returns:
        Positions of noun and verb, or None.
    """
    first = tokens[0] if tokens else ""
    if first not in SINGULAR | PLURAL:
        return None
    noun = None
    for place, token in enumerate(tokens[1:], start=1):
        if token in JOINTS:
            return None
        if token in OTHER_NUMBER:
            fits = (token in VERBS) == (first in SINGULAR)
            return (noun, place) if noun is not None and fits else None
        # The subject's noun is the last of the first run of nouns: "Boston Terrier".
        if token[:1].isupper() and noun in (None, place - 1):
            if token.lower().endswith(COLLECTIVE):
                return None
            noun = place
    return None


def contrastive_pairs(references: Sequence[str]) -> list[Pair]:
    """Break the agreement of subject and verb in all sentences that fit the rule.

    Args:
        references: German sentences, words and punctuation split at spaces, no sub-words.
    """
    pairs = []
    for number, line in enumerate(references):
        tokens = line.split()
        places = find_verb(tokens)
        if places is not None:
            noun, verb = places
            wrong = [*tokens[:verb], OTHER_NUMBER[tokens[verb]], *tokens[verb + 1 :]]
            pairs.append(Pair(number, " ".join(tokens), " ".join(wrong), verb - noun))
    return pairs
