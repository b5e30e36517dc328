"""Twenty questions: one player thinks of a thing, the other asks about it and guesses.

The seats are the answerer and the guesser; agent definitions rotate over them. The guesser writes its questions in
words; the answerer can only say yes, no or unclear.
"""

from random import Random

from pydantic import BaseModel, Field

from mac_runner import Ask, AskView, Table, game

TRAITS = {
    "violin": {"made by people", "used for music", "smaller than a car"},
    "piano": {"made by people", "used for music", "heavier than a person"},
    "train": {"made by people", "heavier than a person", "able to move by itself"},
    "umbrella": {"made by people", "smaller than a car", "useful in the rain"},
    "whale": {"alive", "heavier than a person", "able to move by itself", "at home in water"},
    "salmon": {"alive", "smaller than a car", "able to move by itself", "at home in water"},
    "owl": {"alive", "smaller than a car", "able to move by itself", "able to fly"},
    "oak": {"alive", "heavier than a person", "a plant"},
    "rose": {"alive", "smaller than a car", "a plant"},
    "glacier": {"heavier than a person", "cold", "made of water"},
    "volcano": {"heavier than a person", "hot"},
    "snowflake": {"smaller than a car", "cold", "made of water", "able to fly"},
}
"""The things to guess, with what scripted players know of them."""


class Settings(BaseModel):
    """The `settings:` of the experiment file."""

    questions: int = Field(default=20, ge=1, le=100)
    """How many questions and guesses there are."""


class Move(BaseModel):
    """A question that can be answered with yes or no, or a guess."""

    question: str = ""
    guess: str = ""


def player(view: AskView, random: Random) -> str:
    """A scripted player for both seats: answers what it knows, and asks what halves the things that are left."""
    secret = next((told.data["secret"] for told in view.told if "secret" in told.data), None)
    if secret is not None:
        trait = view.told[-1].text.removeprefix("Question: Is it ").rstrip("?")
        return "yes" if trait in TRAITS[secret] else "no"
    left = sorted(TRAITS)
    for told in view.told:
        if told.data.get("answer") in ("yes", "no"):
            trait = told.data["question"].removeprefix("Is it ").rstrip("?")
            left = [thing for thing in left if (trait in TRAITS[thing]) == (told.data["answer"] == "yes")]
        left = [thing for thing in left if thing != told.data.get("wrong")]
    if len(left) < 2:
        return Move(guess=left[0] if left else random.choice(sorted(TRAITS))).model_dump_json()
    counts = {trait: sum(trait in TRAITS[thing] for thing in left) for trait in sorted(set().union(*TRAITS.values()))}
    trait = min(counts, key=lambda trait: abs(2 * counts[trait] - len(left)))
    return Move(question=f"Is it {trait}?").model_dump_json()


@game(settings=Settings, seats=2, names=("Ann", "Ben"), players={"player": player})
def twenty_questions(table: Table):
    """The questions, until the thing is guessed or none is left."""
    answerer, guesser = table.agents
    secret = table.random("secret").choice(sorted(TRAITS))
    table.rules = (
        f"Twenty questions. {answerer} thinks of one of these: {', '.join(TRAITS)}. {guesser} asks questions whose "
        f"answer is yes or no, and guesses; there are {table.settings.questions} moves."
    )
    table.tell(f"The thing is: {secret}.", to=answerer, when="Secret", secret=secret)
    for number in range(1, table.settings.questions + 1):
        when = f"Move {number}"
        move = yield Ask(guesser, "Ask a question, or make a guess.", schema=Move, default=Move())
        if move.guess.casefold().strip() == secret:
            table.tell(f"{guesser} guesses {secret}, and is right.", when=when)
            return {"solved": True, "moves": number, "secret": secret, "won": {answerer: False, guesser: True}}
        if move.guess:
            table.tell(f"{guesser} guesses {move.guess}, and is wrong.", when=when, wrong=move.guess)
            continue
        table.tell(f"Question: {move.question}", when=when)
        answer = yield Ask(answerer, "Answer the question.", choices=("yes", "no", "unclear"), default="unclear")
        table.tell(f"Answer: {answer}.", when=when, question=move.question, answer=answer)
    return {"solved": False, "moves": number, "secret": secret, "won": {answerer: True, guesser: False}}
