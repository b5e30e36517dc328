"""Negotiation: a seller and a buyer bargain over a price; each alone knows what the thing is worth to it.

The seats are the seller and the buyer; agent definitions rotate over them. A deal between the seller's cost and the
buyer's value leaves both better off. The outcome has the payoff of each.
"""

from random import Random

from pydantic import BaseModel, Field

from mac_runner import Ask, AskView, Table, game


class Settings(BaseModel):
    """The `settings:` of the experiment file."""

    offers: int = Field(default=6, ge=1, le=50)
    """How many offers are made before the talks break down."""
    lowest: int = Field(default=20, ge=0, le=200)
    highest: int = Field(default=120, ge=0, le=200)
    """The bounds that cost and value are drawn from."""


class Offer(BaseModel):
    """What a player replies; a reply that does not fit is sent back with the reason."""

    accept: bool
    price: int = Field(ge=0, le=200)
    message: str = ""


def haggler(view: AskView, random: Random) -> str:
    """A scripted player: moves towards its limit with each offer, and takes a price that is good enough."""
    limit, sign = next((told.data["limit"], told.data["sign"]) for told in view.told if "limit" in told.data)
    prices = [told.data["price"] for told in view.told if "price" in told.data]
    if prices and sign * (prices[-1] - limit) >= max(0, 20 - 4 * len(prices)):
        return Offer(accept=True, price=prices[-1], message="Agreed.").model_dump_json()
    price = limit + sign * max(0, 40 - 8 * len(prices) + random.randint(0, 5))
    price = min(200, max(0, price))
    return Offer(accept=False, price=price, message=f"My offer is {price}.").model_dump_json()


@game(settings=Settings, seats=2, names=("Sam", "Bea"), players={"haggler": haggler})
def negotiation(table: Table):
    """The talks, from the first offer to a deal or to none."""
    settings, (seller, buyer) = table.settings, table.agents
    draw = table.random("limits")
    cost, value = sorted(draw.randint(settings.lowest, settings.highest) for _ in range(2))
    table.rules = (
        f"{seller} sells an old bicycle to {buyer}. They offer prices in turn, {settings.offers} offers in all. "
        "A deal pays the seller the price minus the cost, and the buyer the value minus the price. Else both get 0."
    )
    table.tell(f"You sell. The cost is {cost}; keep it to yourself.", to=seller, when="Limits", limit=cost, sign=1)
    table.tell(f"You buy. The value is {value}; keep it to yourself.", to=buyer, when="Limits", limit=value, sign=-1)
    payoff = {seller: 0, buyer: 0}
    price = None
    for number in range(1, settings.offers + 1):
        name = seller if number % 2 else buyer
        question = "Make the first offer." if price is None else f"Accept {price}, or offer another price."
        offer = yield Ask(name, question, schema=Offer)
        if offer is not None and offer.accept and price is not None:
            table.tell(f"{name} accepts {price}.", when=f"Offer {number}", deal=price)
            payoff = {seller: price - cost, buyer: value - price}
            break
        if offer is not None:
            price = offer.price
            table.tell(f"{name} offers {price}. {offer.message}", when=f"Offer {number}", price=price)
    return {"deal": any(payoff.values()), "price": price, "offers": number, "payoff": payoff, "gain": value - cost}
