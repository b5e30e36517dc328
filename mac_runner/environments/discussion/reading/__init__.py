"""How the answer in a reply is found, and which choice it names."""
